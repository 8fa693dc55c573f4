//! Tests of a session without a network connection.

use std::net::Ipv4Addr;
use std::sync::atomic::AtomicUsize;
use std::sync::{Weak, mpsc};
use std::time::Duration;

use parking_lot::Mutex;

use super::*;
use crate::{
    BrokerSettings, BrokerTlsSettings, BrokerWebSocketSettings, ConnectLimit, MessageSink,
    PreparedMessage,
};
use domain::SystemClock;
use protocol::{DialectSettings, TopicScheme};
use service::settings::HumanDuration;
use service::{ByteBudget, ClientBudgetSettings};

#[derive(Default)]
pub(crate) struct TestSink {
    /// The state of the broker. If set, the sink checks that the lock of all connections is free
    /// while it prepares a message.
    state: Arc<OnceLock<Weak<BrokerState>>>,
    submit_count: Arc<AtomicUsize>,
    /// For each prepared message, whether it is a last will.
    pub last_wills: Arc<Mutex<Vec<bool>>>,
    /// The reasons of the reported disconnects.
    pub disconnects: Arc<Mutex<Vec<OfflineReason>>>,
}

impl MessageSink for TestSink {
    fn prepare(&self, message: InboundMessage) -> PreparedMessage {
        self.last_wills
            .lock()
            .push(message.is_last_will == Some(true));
        // Another thread needs the lock of all connections.
        let (sender, receiver) = mpsc::channel();
        if let Some(state) = self.state.get().and_then(Weak::upgrade) {
            std::thread::spawn(move || {
                state
                    .live_connections
                    .is_connected(&ClientId::new("other").unwrap());
                let _ = sender.send(());
            });
            let is_unlocked = receiver.recv_timeout(Duration::from_secs(5)).is_ok();
            assert!(is_unlocked, "the lock is held while a message is prepared");
        }
        let submit_count = self.submit_count.clone();
        PreparedMessage::new(move || {
            submit_count.fetch_add(1, Ordering::Relaxed);
            PendingWrite::completed()
        })
    }

    fn on_client_disconnected(&self, _client: ClientId, reason: OfflineReason) -> PendingWrite {
        self.disconnects.lock().push(reason);
        PendingWrite::completed()
    }

    fn is_overloaded(&self) -> bool {
        false
    }
}

pub(crate) fn broker_state(sink: impl MessageSink) -> Arc<BrokerState> {
    let topics = TopicScheme::new(vec!["p".to_owned()], &DialectSettings::default());
    Arc::new(BrokerState::new(
        settings(),
        ClientBudgetSettings {
            messages_per_second: 20,
            message_burst: 200,
            bytes_per_second: 1_000_000,
            byte_burst: 1_000_000,
        },
        topics,
        Arc::new(sink),
        Arc::new(SystemClock),
        ByteBudget::new(1_000_000),
    ))
}

fn settings() -> BrokerSettings {
    let timeout = HumanDuration::from(Duration::from_secs(10));
    BrokerSettings {
        listen: None,
        max_connections: 100,
        max_connections_per_address: 100,
        max_pending_connections: 10,
        max_packet_size: 1_000_000,
        connect_limit: ConnectLimit {
            burst: 10,
            per_second: 10.0,
        },
        handshake_timeout: timeout,
        packet_timeout: timeout,
        ack_timeout: timeout,
        reconnect_grace: timeout,
        websocket: BrokerWebSocketSettings {
            listen: None,
            path: None,
        },
        tls: tls_settings(),
    }
}

pub(crate) fn tls_settings() -> BrokerTlsSettings {
    BrokerTlsSettings {
        listen: None,
        websocket_listen: None,
        certificate: None,
        key: None,
        client_ca: None,
        crl: None,
        reload_interval: HumanDuration::from(Duration::from_secs(10)),
    }
}

fn session(state: Arc<BrokerState>, stream: StreamHandle) -> ClientSession {
    let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    ClientSession::new(state, peer, None, stream)
}

#[test]
fn closed_session_releases_a_payload_that_mqtt5_did_not_process() {
    let budget = ByteBudget::new(1_000_000);
    let stream = StreamHandle::default();
    let session = session(broker_state(TestSink::default()), stream.clone());
    stream.set_large_payload(LargePayload {
        payload: Bytes::from(vec![0; 100_000]),
        truncated_from: None,
        reservation: budget.reserve(100_000),
    });
    session.close();
    assert_eq!(budget.used(), 0);
}

#[test]
fn message_is_prepared_without_the_lock_and_submitted_unless_superseded() {
    let sink = TestSink::default();
    let (state_of_sink, submit_count) = (sink.state.clone(), sink.submit_count.clone());
    let state = broker_state(sink);
    state_of_sink.set(Arc::downgrade(&state)).unwrap();
    let session = session(state.clone(), StreamHandle::default());
    let id = ClientId::new("a").unwrap();
    let register = || {
        let connections = &state.live_connections;
        let limits = ClientLimits::default();
        connections.register(&id, session.peer, StreamHandle::default(), limits)
    };
    let client = AuthenticatedClient {
        generation: register().generation,
        id: id.clone(),
        uses_mqtt_v5: true,
        is_new_takeover: AtomicBool::new(false),
        offline_will: None,
    };
    let message = || session.inbound_message("p/a/control/out", Bytes::from_static(b"{}"), None);
    assert!(session.forward_message(&client, message()).is_some());
    register();
    assert!(session.forward_message(&client, message()).is_none());
    assert_eq!(submit_count.load(Ordering::Relaxed), 1);
}
