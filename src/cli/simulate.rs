//! `simulate`: clients that behave as they should. They come online, print what they receive,
//! answer pings and messages, and leave cleanly at Ctrl-C.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Result, bail};
use clap::Args;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use uuid::Uuid;

use super::block_on;
use crate::config::Pem;
use crate::domain::{ClientId, Clock as _, Reported, SystemClock};
use crate::mqtt::{self, Backoff, ClientTls, Happening, Link, Options, Publisher, Session, Will};
use crate::protocol::status::client::{self, Heard};
use crate::protocol::{ClientTopic, Direction, Route, Topics, Words};
use crate::shutdown::Stopper;

const MAX_PACKET: usize = 2 * 1024 * 1024;

#[derive(Debug, Args)]
pub(super) struct SimulateArgs {
    /// Address and port of the broker; a name where its certificate needs one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:1883")]
    mqtt: String,
    /// Client id; with --clients above 1, what they begin with [default: a random one]
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    /// How many clients
    #[arg(long, value_name = "N", default_value_t = 1)]
    clients: u32,
    /// Topic prefix
    #[arg(long, default_value = "redhat/insights")]
    prefix: String,
    /// Authority that signed the broker's certificate (PEM); makes the connection TLS
    #[arg(long, value_name = "FILE", requires_all = ["cert", "key"])]
    ca: Option<PathBuf>,
    /// This client's certificate (PEM); its common name must be the id
    #[arg(long, value_name = "FILE", requires = "ca")]
    cert: Option<PathBuf>,
    /// The certificate's key (PEM)
    #[arg(long, value_name = "FILE", requires = "ca")]
    key: Option<PathBuf>,
}

pub(super) fn run(args: &SimulateArgs) -> Result<ExitCode> {
    check_address(&args.mqtt)?;
    if args.ca.is_some() && args.clients > 1 {
        bail!("--clients: a certificate is one client's; run one process a client");
    }
    let clients = names(args)?
        .into_iter()
        .map(|id| Simulated::new(args, &id))
        .collect::<Result<Vec<_>>>()?;
    block_on(run_all(clients))
}

fn check_address(address: &str) -> Result<()> {
    let has_port = address
        .rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    if !has_port {
        bail!("--mqtt: {address:?} is not HOST:PORT; for example 127.0.0.1:1883");
    }
    Ok(())
}

fn names(args: &SimulateArgs) -> Result<Vec<ClientId>> {
    let base = args
        .id
        .clone()
        .unwrap_or_else(|| Uuid::new_v4().to_string());
    (0..args.clients)
        .map(|n| {
            let name = if args.clients == 1 {
                base.clone()
            } else {
                format!("{base}-{n}")
            };
            ClientId::new(&name).map_err(|why| anyhow::anyhow!("--id: {name:?}: {why}"))
        })
        .collect()
}

async fn run_all(clients: Vec<Simulated>) -> Result<ExitCode> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let stopper = Stopper::new();
    for simulated in clients {
        stopper.spawn(simulated.live(stopper.clone()));
    }
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    stopper.stop(std::time::Duration::from_secs(5)).await;
    Ok(ExitCode::SUCCESS)
}

struct Simulated {
    id: ClientId,
    prefix: String,
    options: Options,
    reported: Reported,
}

impl Simulated {
    fn new(args: &SimulateArgs, id: &ClientId) -> Result<Self> {
        let scheme = if args.ca.is_some() { "mqtts" } else { "mqtt" };
        let identity = args.cert.clone().zip(args.key.clone());
        let options = Options {
            url: format!("{scheme}://{}", args.mqtt),
            client_id: id.to_string(),
            session: Session::Clean,
            tls: ClientTls {
                ca: args.ca.clone().map(Pem::File),
                identity,
            },
            credentials: None,
            token: None,
            // Built once, as real clients do: its `sent` is before every online.
            will: Some(Will {
                topic: topic(&args.prefix, id, Route::Control(Direction::FromClient)),
                payload: client::offline(SystemClock.now()),
            }),
            max_packet_size: MAX_PACKET,
        };
        // Tried once, so that a wrong file is found before anything starts.
        drop(mqtt::connect(&options)?);
        Ok(Self {
            id: id.clone(),
            prefix: args.prefix.clone(),
            options,
            reported: reported(id),
        })
    }

    /// Connects, and connects again when the connection is lost, until it is asked to stop.
    async fn live(self, stopper: Stopper) {
        let mut backoff = Backoff::default();
        while !stopper.is_asked() {
            let Ok((publisher, link)) = mqtt::connect(&self.options) else {
                return;
            };
            let me = Arc::new(Speaker {
                id: self.id.clone(),
                prefix: self.prefix.clone(),
                publisher,
                reported: self.reported.clone(),
            });
            one_connection(me, link, &mut backoff, &stopper).await;
            tokio::select! {
                () = tokio::time::sleep(backoff.pause()) => {}
                () = stopper.asked() => {}
            }
        }
    }
}

async fn one_connection(
    me: Arc<Speaker>,
    mut link: Link,
    backoff: &mut Backoff,
    stopper: &Stopper,
) {
    let mut leaving = false;
    loop {
        let happening = tokio::select! {
            happening = link.next() => happening,
            () = stopper.asked(), if !leaving => {
                leaving = true;
                stopper.spawn(me.clone().leave());
                continue;
            }
        };
        match happening {
            Happening::Lost(why) => {
                if !leaving {
                    me.say(&format!("lost the broker: {why}"));
                }
                return;
            }
            Happening::Connected { .. } => {
                backoff.reset();
                stopper.spawn(me.clone().arrive());
            }
            Happening::Subscribed(true) => {}
            Happening::Subscribed(false) => me.say("the broker refused a subscription"),
            Happening::Message { topic, payload, .. } => {
                stopper.spawn(me.clone().hear(topic, payload.to_vec()));
            }
        }
    }
}

/// What talks while the link is being polled.
struct Speaker {
    id: ClientId,
    prefix: String,
    publisher: Publisher,
    reported: Reported,
}

impl Speaker {
    async fn arrive(self: Arc<Self>) {
        for route in [Route::Control, Route::Data] {
            let topic = topic(&self.prefix, &self.id, route(Direction::ToClient));
            if self.publisher.subscribe(topic).await.is_err() {
                return;
            }
        }
        let online = client::online(SystemClock.now(), &self.reported);
        if self.tell(Route::Control, online).await {
            self.say("online");
        }
    }

    async fn leave(self: Arc<Self>) {
        let offline = client::offline(SystemClock.now());
        if self.tell(Route::Control, offline).await {
            self.say("offline");
        }
        let _ = self.publisher.disconnect().await;
    }

    async fn hear(self: Arc<Self>, topic: String, payload: Vec<u8>) {
        self.say(&format!(
            "received on {topic}: {}",
            String::from_utf8_lossy(&payload)
        ));
        let now = SystemClock.now();
        match client::parse(&payload) {
            Some(Heard::Command {
                message_id,
                command,
                ..
            }) if command == "ping" => {
                self.tell(Route::Control, client::pong(now, &message_id))
                    .await;
            }
            Some(Heard::Data {
                message_id,
                directive,
                content,
            }) => {
                let answer = client::answer(now, &message_id, &directive, &content);
                self.tell(Route::Data, answer).await;
            }
            Some(Heard::Command { .. }) | None => {}
        }
    }

    async fn tell(&self, route: fn(Direction) -> Route, payload: Vec<u8>) -> bool {
        let topic = topic(&self.prefix, &self.id, route(Direction::FromClient));
        self.publisher.publish(topic, payload).await.is_ok()
    }

    fn say(&self, what: &str) {
        // Whoever read it may be gone; the client goes on.
        let _ = writeln!(std::io::stdout(), "{}: {what}", self.id);
    }
}

fn topic(prefix: &str, id: &ClientId, route: Route) -> String {
    let topics = Topics::new(Vec::new(), Words::default());
    topics.name(&ClientTopic {
        prefix: prefix.to_owned(),
        client: id.clone(),
        route,
    })
}

fn reported(id: &ClientId) -> Reported {
    Reported {
        canonical_facts: json!({
            "insights_id": Uuid::new_v4(),
            "machine_id": Uuid::new_v4(),
            "fqdn": format!("{id}.example.com"),
            "ip_addresses": ["192.0.2.1"],
            "mac_addresses": ["52:54:00:00:00:01"],
        }),
        catalog_service_facts: json!(null),
        dispatchers: json!({"echo": {}, "rhc-worker-playbook": {}}),
        tags: json!({"simulated": "true"}),
        client_name: "cloud-connector simulate".to_owned(),
        client_version: env!("CARGO_PKG_VERSION").to_owned(),
    }
}
