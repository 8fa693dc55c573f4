//! `simulate`: clients that behave as they should. They come online, print what they receive,
//! answer pings and messages, and leave cleanly at Ctrl-C.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use uuid::Uuid;

use super::block_on;
use crate::domain::{ClientId, Clock as _, Reported, SystemClock};
use crate::mqtt::{self, ClientTls, Happening, Link, Options, Publisher};
use crate::protocol::status::client::{self, Heard};
use crate::protocol::{Channel, ClientTopic, Direction};
use crate::shutdown::Stopper;

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
    let (host, port) = host_and_port(&args.mqtt)?;
    let tls = match (&args.ca, &args.cert, &args.key) {
        (Some(ca), Some(certificate), Some(key)) => Some(ClientTls {
            ca: ca.clone(),
            certificate: certificate.clone(),
            key: key.clone(),
        }),
        _ => None,
    };
    if tls.is_some() && args.clients > 1 {
        bail!("--clients: a certificate is one client's; run one process a client");
    }
    let clients = names(args)?
        .into_iter()
        .map(|id| Simulated::new(&id, &args.prefix, &host, port, tls.clone()))
        .collect::<Result<Vec<_>>>()?;
    block_on(run_all(clients))
}

fn host_and_port(address: &str) -> Result<(String, u16)> {
    if let Ok(address) = address.parse::<SocketAddr>() {
        return Ok((address.ip().to_string(), address.port()));
    }
    address
        .rsplit_once(':')
        .and_then(|(host, port)| Some((host.to_owned(), port.parse().ok()?)))
        .with_context(|| {
            format!("--mqtt: {address:?} is not HOST:PORT; for example 127.0.0.1:1883")
        })
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
    publisher: Publisher,
    link: Link,
    reported: Reported,
}

impl Simulated {
    fn new(
        id: &ClientId,
        prefix: &str,
        host: &str,
        port: u16,
        tls: Option<ClientTls>,
    ) -> Result<Self> {
        let will = topic(prefix, id, Channel::Control, Direction::Out);
        let (publisher, link) = mqtt::connect(Options {
            host: host.to_owned(),
            port,
            client_id: id.to_string(),
            tls,
            // Built once, as real clients do: its `sent` is before every online.
            will: Some((will, client::offline(SystemClock.now()))),
        })?;
        Ok(Self {
            id: id.clone(),
            prefix: prefix.to_owned(),
            publisher,
            link,
            reported: reported(id),
        })
    }

    async fn live(mut self, stopper: Stopper) {
        let me = Arc::new(Speaker {
            id: self.id.clone(),
            prefix: self.prefix.clone(),
            publisher: self.publisher.clone(),
            reported: self.reported.clone(),
        });
        let mut leaving = false;
        loop {
            let happening = tokio::select! {
                happening = self.link.next() => happening,
                () = stopper.asked(), if !leaving => {
                    leaving = true;
                    stopper.spawn(me.clone().leave());
                    continue;
                }
            };
            match happening {
                Happening::Lost(_) if leaving => return,
                Happening::Lost(why) => me.say(&format!("lost the broker: {why}")),
                Happening::Connected => {
                    stopper.spawn(me.clone().arrive());
                }
                Happening::Subscribed(true) => {}
                Happening::Subscribed(false) => me.say("the broker refused a subscription"),
                Happening::Message { topic, payload } => {
                    stopper.spawn(me.clone().hear(topic, payload.to_vec()));
                }
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
        for channel in [Channel::Control, Channel::Data] {
            let topic = topic(&self.prefix, &self.id, channel, Direction::In);
            if self.publisher.subscribe(topic).await.is_err() {
                return;
            }
        }
        let online = client::online(SystemClock.now(), &self.reported);
        if self.tell(Channel::Control, online).await {
            self.say("online");
        }
    }

    async fn leave(self: Arc<Self>) {
        let offline = client::offline(SystemClock.now());
        if self.tell(Channel::Control, offline).await {
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
            }) if command == "ping" => {
                self.tell(Channel::Control, client::pong(now, &message_id))
                    .await;
            }
            Some(Heard::Data {
                message_id,
                directive,
                content,
            }) => {
                let answer = client::answer(now, &message_id, &directive, &content);
                self.tell(Channel::Data, answer).await;
            }
            Some(Heard::Command { .. }) | None => {}
        }
    }

    async fn tell(&self, channel: Channel, payload: Vec<u8>) -> bool {
        let topic = topic(&self.prefix, &self.id, channel, Direction::Out);
        self.publisher.publish(topic, payload).await.is_ok()
    }

    fn say(&self, what: &str) {
        println!("{}: {what}", self.id);
    }
}

fn topic(prefix: &str, id: &ClientId, channel: Channel, direction: Direction) -> String {
    ClientTopic {
        prefix: prefix.to_owned(),
        client: id.clone(),
        channel,
        direction,
    }
    .name()
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
        dispatchers: json!({"echo": {}, "rhc-worker-playbook": {}}),
        tags: json!({"simulated": "true"}),
        client_name: "cloud-connector simulate".to_owned(),
        client_version: env!("CARGO_PKG_VERSION").to_owned(),
    }
}
