//! State shared by all clients, and the creation of the clients.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use tokio::sync::watch;
use uuid::Uuid;

use super::args::SimulateArgs;
use super::client::Client;
use super::counters::Counters;
use super::dialect::{Delivery, Dialect, TopicNames, new_info};
use super::misbehavior::Misbehaviors;
use crate::cli::certs::CertificateAuthority;
use crate::config::PemSource;
use crate::domain::{ClientId, Clock as _, SystemClock};
use crate::mqtt::{self, ClientTls, ConnectOptions, SessionKind, Will};
use crate::shutdown::TaskGroup;

const MAX_PACKET_BYTES: usize = 2 * 1024 * 1024;
/// Queued requests per client. The queue is small, because one process may run 10,000 clients.
const REQUEST_QUEUE_LEN: usize = 32;
/// The timeout of real clients. A shorter timeout would cause additional connect attempts while
/// the broker is overloaded.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) struct Fleet {
    pub topics: TopicNames,
    pub misbehaviors: Misbehaviors,
    pub counters: Counters,
    pub tasks: TaskGroup,
    /// Whether each event is printed to standard output.
    pub prints_events: bool,
    storm: watch::Sender<bool>,
}

impl Fleet {
    pub fn new(args: &SimulateArgs, prints_events: bool) -> Self {
        Self {
            topics: TopicNames::new(&args.topic_prefix, args.handshake_status_topic),
            misbehaviors: Misbehaviors::new(&args.misbehave),
            counters: Counters::default(),
            tasks: TaskGroup::new(),
            prints_events,
            storm: watch::Sender::new(false),
        }
    }

    /// Ignores write errors: a closed standard output must not stop the simulation.
    pub fn print_event(&self, id: &ClientId, event: &str) {
        if self.prints_events {
            let _ = writeln!(std::io::stdout(), "{id}: {event}");
        }
    }

    pub fn set_storm(&self, is_storm: bool) {
        self.storm.send_replace(is_storm);
    }

    pub fn is_storm(&self) -> bool {
        *self.storm.borrow()
    }

    /// Waits until a storm starts, then for `hold_time`.
    pub async fn storm_hit(&self, hold_time: Duration) {
        let mut storm = self.storm.subscribe();
        if storm.wait_for(|is_storm| *is_storm).await.is_err() {
            return std::future::pending().await;
        }
        tokio::time::sleep(hold_time).await;
    }
}

/// Creates all clients. With `--tls-dir`, also issues missing client certificates.
pub(super) fn create_clients(args: &SimulateArgs, fleet: &Arc<Fleet>) -> Result<Vec<Arc<Client>>> {
    let authority = match &args.tls_dir {
        Some(dir) => Some(CertificateAuthority::open(dir, "--tls-dir")?),
        None => None,
    };
    let mut clients = Vec::new();
    for (index, id) in (0..).zip(client_ids(args.id.as_deref(), args.clients)?) {
        let tls = match &authority {
            Some(authority) => ClientTls {
                ca: Some(PemSource::File(authority.certificate())),
                identity: Some(authority.client_certificate(&id)?),
            },
            None => ClientTls {
                ca: args.ca.clone().map(PemSource::File),
                identity: args.cert.clone().zip(args.key.clone()),
            },
        };
        let dialect = Dialect::for_client(args.dialect, index);
        let options = options(&args.mqtt, &id, tls, last_will(fleet, &id, dialect));
        if index == 0 {
            // Reads the TLS files, so that an unreadable file is reported before any client
            // connects.
            drop(mqtt::connect(&options)?);
        }
        let info = new_info(&id);
        clients.push(Arc::new(Client::new(
            id,
            index,
            dialect,
            options,
            info,
            fleet.clone(),
        )));
    }
    Ok(clients)
}

/// Creates the last will once per client, like real clients do: its `message_id` is the same on
/// all connections, and its `sent` time is older than that of every online message.
fn last_will(fleet: &Fleet, id: &ClientId, dialect: Dialect) -> Will {
    let message = dialect.last_will(SystemClock.now());
    Will {
        topic: fleet.topics.topic(id, message.channel),
        retain: message.delivery == Delivery::Retained,
        payload: message.payload,
    }
}

fn options(address: &str, id: &ClientId, tls: ClientTls, will: Will) -> ConnectOptions {
    let scheme = if tls.ca.is_some() { "mqtts" } else { "mqtt" };
    ConnectOptions {
        url: format!("{scheme}://{address}"),
        client_id: id.to_string(),
        session: SessionKind::Clean,
        tls,
        credentials: None,
        token: None,
        will: Some(will),
        max_packet_size: MAX_PACKET_BYTES,
        max_queued_requests: REQUEST_QUEUE_LEN,
        connect_timeout: CONNECT_TIMEOUT,
    }
}

fn client_ids(id: Option<&str>, clients: u32) -> Result<Vec<ClientId>> {
    let base = id.map_or_else(|| Uuid::new_v4().to_string(), ToOwned::to_owned);
    let parse = |id: String| {
        ClientId::new(&id)
            .map_err(|error| anyhow!("--id: invalid client id {id:?}: {error}; choose another id"))
    };
    if clients == 1 {
        return Ok(vec![parse(base)?]);
    }
    (0..clients).map(|n| parse(format!("{base}-{n}"))).collect()
}

/// Checks what the argument parser cannot check.
pub(super) fn check_args(args: &SimulateArgs) -> Result<()> {
    let address = &args.mqtt;
    let is_host_and_port = address
        .rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    if !is_host_and_port {
        bail!("--mqtt: {address:?} is not HOST:PORT, such as 127.0.0.1:1883");
    }
    if args.ca.is_some() && args.clients > 1 {
        bail!("--clients: --cert is for a single client; use --tls-dir for several clients");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id_texts(id: Option<&str>, clients: u32) -> Vec<String> {
        let ids = client_ids(id, clients).unwrap();
        ids.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_single_client_has_the_given_id_and_several_clients_are_numbered() {
        assert_eq!(id_texts(Some("host"), 1), ["host"]);
        assert_eq!(id_texts(Some("host"), 3), ["host-0", "host-1", "host-2"]);
        let random = id_texts(None, 1);
        assert_ne!(random, id_texts(None, 1));
        assert!(random[0].parse::<Uuid>().is_ok());
    }

    #[test]
    fn an_invalid_id_is_rejected_with_the_option_name_and_the_fix() {
        let error = client_ids(Some("a/b"), 1).unwrap_err().to_string();
        assert!(
            error.contains("--id") && error.contains("choose another id"),
            "{error}"
        );
    }
}
