//! What all clients share, and who they are.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use tokio::sync::watch;
use uuid::Uuid;

use super::args::SimulateArgs;
use super::client::Client;
use super::counters::Counters;
use super::dialect::{Dialect, Names, reported};
use super::misbehavior::Misbehaviors;
use crate::cli::certs::Authority;
use crate::config::Pem;
use crate::domain::{ClientId, Clock as _, SystemClock};
use crate::mqtt::{self, ClientTls, Options, Session, Will};
use crate::shutdown::TaskGroup;

const MAX_PACKET: usize = 2 * 1024 * 1024;
/// Few, because there may be ten thousand of us in one process.
const REQUESTS: usize = 32;
/// As long as real clients wait: who gives up earlier makes an overload worse.
const CONNECT_WITHIN: Duration = Duration::from_secs(30);

pub(super) struct Fleet {
    pub names: Names,
    pub manners: Misbehaviors,
    pub tally: Counters,
    pub stopper: TaskGroup,
    /// Whether each event is a line on standard output.
    pub tells_events: bool,
    storm: watch::Sender<bool>,
}

impl Fleet {
    pub fn new(args: &SimulateArgs, tells_events: bool) -> Self {
        Self {
            names: Names::new(&args.prefix, args.handshake_status_topic),
            manners: Misbehaviors::new(&args.misbehave),
            tally: Counters::default(),
            stopper: TaskGroup::new(),
            tells_events,
            storm: watch::Sender::new(false),
        }
    }

    pub fn event(&self, id: &ClientId, what: &str) {
        if self.tells_events {
            // Whoever read it may be gone; the client goes on.
            let _ = writeln!(std::io::stdout(), "{id}: {what}");
        }
    }

    pub fn set_storm(&self, rages: bool) {
        self.storm.send_replace(rages);
    }

    pub fn is_storm(&self) -> bool {
        *self.storm.borrow()
    }

    /// Comes to an end when there is a storm, and has held off for that long.
    pub async fn storm_hit(&self, holds: Duration) {
        let mut storm = self.storm.subscribe();
        if storm.wait_for(|rages| *rages).await.is_err() {
            return std::future::pending().await;
        }
        tokio::time::sleep(holds).await;
    }
}

/// Makes the clients, with their certificates.
pub(super) fn spawn_fleet(args: &SimulateArgs, fleet: &Arc<Fleet>) -> Result<Vec<Arc<Client>>> {
    let authority = match &args.tls_dir {
        Some(dir) => Some(Authority::open(dir, "--tls-dir")?),
        None => None,
    };
    let mut clients = Vec::new();
    for (number, id) in (0..).zip(names(args.id.as_deref(), args.clients)?) {
        let tls = match &authority {
            Some(authority) => ClientTls {
                ca: Some(Pem::File(authority.certificate())),
                identity: Some(authority.of_client(&id)?),
            },
            None => ClientTls {
                ca: args.ca.clone().map(Pem::File),
                identity: args.cert.clone().zip(args.key.clone()),
            },
        };
        let voice = Dialect::of(args.dialect, number);
        let options = options(&args.mqtt, &id, tls, will(fleet, &id, voice));
        if number == 0 {
            // Tried once, so that a wrong file is found before anything starts.
            drop(mqtt::connect(&options)?);
        }
        let reported = reported(&id);
        clients.push(Arc::new(Client::new(
            id,
            number,
            voice,
            options,
            reported,
            fleet.clone(),
        )));
    }
    Ok(clients)
}

/// Built once, as real clients do: its message id is the same over all connections and its `sent`
/// before every online.
fn will(fleet: &Fleet, id: &ClientId, voice: Dialect) -> Will {
    let will = voice.will(SystemClock.now());
    Will {
        topic: fleet.names.topic(id, will.route),
        retain: will.how == super::dialect::Delivery::Retained,
        payload: will.payload,
    }
}

fn options(address: &str, id: &ClientId, tls: ClientTls, will: Will) -> Options {
    let scheme = if tls.ca.is_some() { "mqtts" } else { "mqtt" };
    Options {
        url: format!("{scheme}://{address}"),
        client_id: id.to_string(),
        session: Session::Clean,
        tls,
        credentials: None,
        token: None,
        will: Some(will),
        max_packet_size: MAX_PACKET,
        requests: REQUESTS,
        connect_within: CONNECT_WITHIN,
    }
}

fn names(base: Option<&str>, clients: u32) -> Result<Vec<ClientId>> {
    let base = base.map_or_else(|| Uuid::new_v4().to_string(), ToOwned::to_owned);
    let made = |name: String| {
        ClientId::new(&name)
            .map_err(|why| anyhow!("--id: {name:?} cannot be a client id: {why}; choose another"))
    };
    if clients == 1 {
        return Ok(vec![made(base)?]);
    }
    (0..clients).map(|n| made(format!("{base}-{n}"))).collect()
}

/// What the parser of the command line cannot know to be wrong.
pub(super) fn check(args: &SimulateArgs) -> Result<()> {
    let address = &args.mqtt;
    let has_port = address
        .rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    if !has_port {
        bail!("--mqtt: {address:?} is not HOST:PORT; for example 127.0.0.1:1883");
    }
    if args.ca.is_some() && args.clients > 1 {
        bail!(
            "--clients: --cert is one client's; for many, name the authority's folder: --tls-dir"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn as_text(base: Option<&str>, clients: u32) -> Vec<String> {
        let names = names(base, clients).unwrap();
        names.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn one_client_has_the_name_and_many_are_numbered() {
        assert_eq!(as_text(Some("me"), 1), ["me"]);
        assert_eq!(as_text(Some("me"), 3), ["me-0", "me-1", "me-2"]);
        let random = as_text(None, 1);
        assert_ne!(random, as_text(None, 1));
        assert!(random[0].parse::<Uuid>().is_ok());
    }

    #[test]
    fn a_name_that_no_client_can_have_is_refused_with_its_cure() {
        let problem = names(Some("a/b"), 1).unwrap_err().to_string();
        assert!(
            problem.contains("--id") && problem.contains("choose"),
            "{problem}"
        );
    }
}
