//! Tests of the shards with a running broker and MQTT clients.

use std::collections::HashSet;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::packet_format::encode_packet;
use crate::session::tests::{TestSink, broker_state};
use crate::{Broker, PublishError, accept};
use service::TaskGroup;

/// Number of clients, more than one for most of the shards that they use.
const CLIENT_COUNT: usize = 60;
const DEADLINE: Duration = Duration::from_secs(20);
const CONNECT: u8 = 0x10;
const CONNACK: u8 = 0x20;
const PUBLISH_QOS_1: u8 = 0x32;
const SUBSCRIBE: u8 = 0x82;
const SUBACK: u8 = 0x90;
const DISCONNECT: u8 = 0xe0;

pub(crate) struct RunningBroker {
    pub broker: Broker,
    pub address: SocketAddr,
    pub tasks: TaskGroup,
}

impl RunningBroker {
    async fn start() -> Self {
        Self::start_with_sink(TestSink::default()).await
    }

    pub async fn start_with_sink(sink: TestSink) -> Self {
        let state = broker_state(sink);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let tasks = TaskGroup::new();
        let accept = accept::accept_connections(state.clone(), listener, None, tasks.clone());
        tasks.spawn_essential("accept", accept);
        Self {
            broker: Broker { state },
            address,
            tasks,
        }
    }

    fn shards(&self) -> &RouterShards {
        &self.broker.state.router_shards
    }

    async fn publish(&self, client: &ClientId) -> Result<(), PublishError> {
        let payload = client.as_str().into();
        let publish = self
            .broker
            .publish(client, topic(client), payload, DEADLINE);
        publish.await
    }

    pub async fn wait_until_disconnected(&self, client: &ClientId) {
        while self.broker.is_connected(client) {
            tokio::task::yield_now().await;
        }
    }
}

/// A connection of a client with a persistent session.
struct TestClient {
    id: ClientId,
    stream: TcpStream,
    session_present: bool,
}

impl TestClient {
    async fn connect(address: SocketAddr, id: &ClientId) -> Self {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let persistent_session = 0;
        let keep_alive = [0, 60];
        let mut body = b"\0\x04MQTT\x04".to_vec();
        body.push(persistent_session);
        body.extend(keep_alive);
        body.extend(string(id.as_str()));
        let packet = encode_packet(CONNECT, &body);
        stream.write_all(&packet).await.unwrap();
        let connack = read_packet(&mut stream, CONNACK).await;
        assert_eq!(connack[1], 0, "the broker rejected {id}");
        Self {
            id: id.clone(),
            stream,
            session_present: connack[0] == 1,
        }
    }

    async fn subscribe(&mut self) {
        let mut body = vec![0, 1];
        body.extend(string(&topic(&self.id)));
        body.push(1);
        let packet = encode_packet(SUBSCRIBE, &body);
        self.stream.write_all(&packet).await.unwrap();
        assert_eq!(read_packet(&mut self.stream, SUBACK).await, [0, 1, 1]);
    }

    /// Waits for a message and checks that it is for this client.
    async fn receive(&mut self) {
        let body = read_packet(&mut self.stream, PUBLISH_QOS_1).await;
        assert!(body.ends_with(self.id.as_str().as_bytes()));
    }

    async fn disconnect(mut self) {
        let packet = encode_packet(DISCONNECT, &[]);
        self.stream.write_all(&packet).await.unwrap();
    }
}

fn topic(client: &ClientId) -> String {
    format!("p/{client}/control/in")
}

pub(crate) fn string(text: &str) -> Vec<u8> {
    let len = u16::try_from(text.len()).unwrap();
    [&len.to_be_bytes(), text.as_bytes()].concat()
}

/// Reads a packet of at most 127 bytes, and returns its body.
pub(crate) async fn read_packet(stream: &mut TcpStream, first_byte: u8) -> Vec<u8> {
    let read = async {
        let mut header = [0; 2];
        stream.read_exact(&mut header).await.unwrap();
        assert_eq!(header[0], first_byte);
        let mut body = vec![0; header[1].into()];
        stream.read_exact(&mut body).await.unwrap();
        body
    };
    tokio::time::timeout(DEADLINE, read).await.unwrap()
}

fn client_ids() -> Vec<ClientId> {
    let ids = (0..CLIENT_COUNT).map(|n| ClientId::new(&format!("client-{n}")).unwrap());
    ids.collect()
}

#[tokio::test]
async fn shards_are_created_for_their_first_client_and_a_client_keeps_its_shard() {
    let shards = RouterShards::new();
    let used_shards = || shards.shards.iter().filter_map(OnceLock::get).count();
    assert_eq!(used_shards(), 0);
    let ids = client_ids();
    let indexes: HashSet<usize> = ids.iter().map(|id| shards.index_of(id)).collect();
    for id in ids.iter().chain(&ids) {
        assert!(std::ptr::eq(shards.shard_of(id), shards.shard_of(id)));
    }
    assert_eq!(used_shards(), indexes.len());
    assert!(indexes.len() > CLIENT_COUNT / 2, "{indexes:?}");
}

#[tokio::test]
async fn sweep_keeps_the_connections_and_the_sessions_of_all_shards() {
    let running = RunningBroker::start().await;
    let (mut online, mut offline) = (vec![], vec![]);
    for (n, id) in client_ids().iter().enumerate() {
        let mut client = TestClient::connect(running.address, id).await;
        assert!(!client.session_present);
        client.subscribe().await;
        if n % 2 == 0 {
            online.push(client);
        } else {
            client.disconnect().await;
            running.wait_until_disconnected(id).await;
            offline.push(id.clone());
        }
    }
    running.shards().sweep(Duration::ZERO).await;
    for client in &mut online {
        running.publish(&client.id).await.unwrap();
        client.receive().await;
    }
    for id in &offline {
        assert_eq!(running.publish(id).await, Err(PublishError::NotConnected));
        let mut client = TestClient::connect(running.address, id).await;
        assert!(client.session_present, "{id} has lost its session");
        // The session contains the subscription.
        running.publish(id).await.unwrap();
        client.receive().await;
        client.disconnect().await;
    }
    running.tasks.cancel();
}

#[tokio::test]
async fn new_connection_takes_over_the_session_of_its_shard() {
    let running = RunningBroker::start().await;
    for id in &client_ids()[..10] {
        let mut old_client = TestClient::connect(running.address, id).await;
        old_client.subscribe().await;
        let mut new_client = TestClient::connect(running.address, id).await;
        assert!(new_client.session_present);
        let mut rest = Vec::new();
        let closed = old_client.stream.read_to_end(&mut rest);
        let closed = tokio::time::timeout(DEADLINE, closed).await;
        assert!(closed.is_ok(), "the old connection is still open");
        running.publish(id).await.unwrap();
        new_client.receive().await;
        assert!(running.broker.is_connected(id));
    }
    running.tasks.cancel();
}

#[tokio::test]
async fn publish_without_a_subscription_fails() {
    let running = RunningBroker::start().await;
    let id = &client_ids()[0];
    let _client = TestClient::connect(running.address, id).await;
    assert_eq!(running.publish(id).await, Err(PublishError::NotSubscribed));
    running.tasks.cancel();
}
