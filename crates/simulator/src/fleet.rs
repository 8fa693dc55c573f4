//! State that all simulated clients share, and the creation of the clients.

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use tokio::sync::watch;
use uuid::Uuid;

use super::args::SimulateArgs;
use super::client::Client;
use super::counters::Counters;
use super::dialect::{Delivery, Dialect, TopicNames, new_client_info};
use super::misbehavior::Misbehaviors;
use domain::{ClientId, Clock as _, SystemClock};
use mqtt::{ClientTls, ConnectOptions, SessionKind, Will};
use network::certificate_authority::CertificateAuthority;
use service::TaskGroup;
use service::settings::PemSource;

/// Validity of the certificates that the simulator issues for its clients.
const CERTIFICATE_VALIDITY_DAYS: u32 = 365;
const MAX_PACKET_BYTES: usize = 2 * 1024 * 1024;
/// Maximum number of queued MQTT requests per client. The queue is small to save memory, because
/// one process may run 10,000 clients.
const MAX_QUEUED_REQUESTS_PER_CLIENT: usize = 32;
/// Connect timeout. It equals the timeout of real clients. A shorter timeout would cause additional
/// connect attempts while the broker is overloaded.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum number of clients with the same local address, if the broker is on this machine.
const MAX_CLIENTS_PER_ADDRESS: u32 = 1000;

pub(super) struct Fleet {
    pub topics: TopicNames,
    pub misbehaviors: Misbehaviors,
    pub counters: Counters,
    pub tasks: TaskGroup,
    /// Whether each event is printed to standard output.
    pub prints_events: bool,
    /// Whether a reconnect storm is active.
    is_storm_active: watch::Sender<bool>,
}

impl Fleet {
    pub fn new(args: &SimulateArgs, prints_events: bool) -> Self {
        Self {
            topics: TopicNames::new(&args.topic_prefix, args.uses_handshake_status_topic),
            misbehaviors: Misbehaviors::new(&args.misbehaviors),
            counters: Counters::default(),
            tasks: TaskGroup::new(),
            prints_events,
            is_storm_active: watch::Sender::new(false),
        }
    }

    /// Prints an event of a client. Write errors are ignored, because a closed standard output must
    /// not stop the simulation.
    pub fn print_event(&self, client_id: &ClientId, event: &str) {
        if self.prints_events {
            let _ = writeln!(std::io::stdout(), "{client_id}: {event}");
        }
    }

    pub fn set_storm_active(&self, is_active: bool) {
        self.is_storm_active.send_replace(is_active);
    }

    pub fn is_storm_active(&self) -> bool {
        *self.is_storm_active.borrow()
    }

    /// Waits until a storm is active, and then waits for `storm_drop_delay`. The caller drops its
    /// connection afterwards.
    pub async fn wait_for_storm_drop(&self, storm_drop_delay: Duration) {
        let mut is_storm_active = self.is_storm_active.subscribe();
        if is_storm_active
            .wait_for(|is_active| *is_active)
            .await
            .is_err()
        {
            return std::future::pending().await;
        }
        tokio::time::sleep(storm_drop_delay).await;
    }
}

/// Creates all clients. With `--tls-dir`, also issues client certificates that do not exist yet.
pub(super) fn create_clients(args: &SimulateArgs, fleet: &Arc<Fleet>) -> Result<Vec<Arc<Client>>> {
    let authority = match &args.tls_dir {
        Some(dir) => Some(CertificateAuthority::open(dir, "--tls-dir")?),
        None => None,
    };
    let mut clients = Vec::new();
    for (index, client_id) in (0..).zip(client_ids(args.client_id.as_deref(), args.client_count)?) {
        let tls = match &authority {
            Some(authority) => {
                let files = authority
                    .ensure_client_certificate(client_id.as_str(), CERTIFICATE_VALIDITY_DAYS)?;
                ClientTls {
                    ca: Some(PemSource::File(authority.files().certificate)),
                    certificate_and_key_files: Some((files.certificate, files.key)),
                }
            }
            None => ClientTls {
                ca: args.ca_file.clone().map(PemSource::File),
                certificate_and_key_files: args.cert_file.clone().zip(args.key_file.clone()),
            },
        };
        let dialect = Dialect::for_client(args.dialect_mix, index);
        let will = last_will(fleet, &client_id, dialect);
        let mut options = connect_options(&args.broker_address, &client_id, tls, will);
        options.source_address = source_address(&args.broker_address, index);
        if index == 0 {
            // `connect` reads the TLS files, but opens no connection before the event loop is
            // polled. An unusable file is therefore reported before any client connects.
            drop(mqtt::connect(&options)?);
        }
        let info = new_client_info(&client_id);
        clients.push(Arc::new(Client::new(
            client_id,
            index,
            dialect,
            options,
            info,
            fleet.clone(),
        )));
    }
    Ok(clients)
}

/// Creates the last will of a client. Like a real client, a simulated client uses the same last
/// will on all its connections. Therefore the `message_id` never changes, and the `sent` time is
/// older than the `sent` time of every online message.
fn last_will(fleet: &Fleet, client_id: &ClientId, dialect: Dialect) -> Will {
    let message = dialect.last_will(SystemClock.now());
    Will {
        topic: fleet.topics.topic(client_id, message.channel),
        retain: message.delivery == Delivery::Retained,
        payload: message.payload,
    }
}

fn connect_options(
    broker_address: &str,
    client_id: &ClientId,
    tls: ClientTls,
    will: Will,
) -> ConnectOptions {
    let scheme = if tls.ca.is_some() { "mqtts" } else { "mqtt" };
    ConnectOptions {
        url: format!("{scheme}://{broker_address}"),
        client_id: client_id.to_string(),
        session: SessionKind::Clean,
        tls,
        credentials: None,
        token: None,
        will: Some(will),
        max_packet_size: MAX_PACKET_BYTES,
        max_queued_requests: MAX_QUEUED_REQUESTS_PER_CLIENT,
        connect_timeout: CONNECT_TIMEOUT,
        source_address: None,
    }
}

/// Returns the local address of a client, or `None` if the operating system chooses the address.
///
/// With a broker on the same machine, all clients would have the address 127.0.0.1. The Linux kernel
/// then searches for a free port at each connect, which needs more time the more clients are connected:
/// most of the CPU time of the simulator with 20,000 clients. Real clients have different addresses. So
/// each group of [`MAX_CLIENTS_PER_ADDRESS`] clients has an address of its own.
fn source_address(broker_address: &str, client_index: u32) -> Option<IpAddr> {
    let broker: SocketAddrV4 = broker_address.parse().ok()?;
    let group = client_index / MAX_CLIENTS_PER_ADDRESS;
    // Other systems do not accept all addresses of the network 127.0.0.0/8.
    if !cfg!(target_os = "linux") || !broker.ip().is_loopback() || group == 0 {
        return None;
    }
    let [_, _, high, low] = group.to_be_bytes();
    Some(Ipv4Addr::new(127, 1, high, low).into())
}

/// Returns `base_id` for a single client. For several clients, appends a number to `base_id`.
fn client_ids(base_id: Option<&str>, client_count: u32) -> Result<Vec<ClientId>> {
    let base_id = base_id.map_or_else(|| Uuid::new_v4().to_string(), ToOwned::to_owned);
    let parse_id = |id: String| {
        ClientId::new(&id)
            .map_err(|error| anyhow!("--id: invalid client id {id:?}: {error}; choose another id"))
    };
    if client_count == 1 {
        return Ok(vec![parse_id(base_id)?]);
    }
    (0..client_count)
        .map(|n| parse_id(format!("{base_id}-{n}")))
        .collect()
}

/// Checks the arguments for errors that the argument parser cannot detect.
pub(super) fn check_args(args: &SimulateArgs) -> Result<()> {
    let address = &args.broker_address;
    let is_host_and_port = address
        .rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    if !is_host_and_port {
        bail!("--mqtt: {address:?} is not HOST:PORT, such as 127.0.0.1:1883");
    }
    if args.ca_file.is_some() && args.client_count > 1 {
        bail!("--clients: --cert is for a single client; use --tls-dir for several clients");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client_id_texts(base_id: Option<&str>, client_count: u32) -> Vec<String> {
        let ids = client_ids(base_id, client_count).unwrap();
        ids.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_single_client_has_the_given_id_and_several_clients_are_numbered() {
        assert_eq!(client_id_texts(Some("host"), 1), ["host"]);
        assert_eq!(
            client_id_texts(Some("host"), 3),
            ["host-0", "host-1", "host-2"]
        );
        let random_ids = client_id_texts(None, 1);
        assert_ne!(random_ids, client_id_texts(None, 1));
        assert!(random_ids[0].parse::<Uuid>().is_ok());
    }

    #[test]
    fn only_many_clients_of_a_local_broker_have_different_addresses() {
        assert_eq!(source_address("127.0.0.1:1883", 999), None);
        let expected = cfg!(target_os = "linux").then(|| [127, 1, 0, 19].into());
        assert_eq!(source_address("127.0.0.1:1883", 19_499), expected);
        for address in ["192.0.2.1:1883", "broker.example:1883", "[::1]:1883"] {
            assert_eq!(source_address(address, 19_499), None, "{address}");
        }
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
