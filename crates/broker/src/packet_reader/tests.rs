//! Tests of the packet reader with streams in memory.

use std::net::{IpAddr, Ipv4Addr};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

use super::*;
use crate::pending_connections::PendingConnections;

const MIB: usize = 1024 * 1024;
const FIRST_BYTE_CONNECT: u8 = 0x10;
const FIRST_BYTE_PUBLISH_QOS_1: u8 = 0x32;
const FIRST_BYTE_SUBSCRIBE: u8 = 0x82;
const PING: [u8; 2] = [0xc0, 0];

/// A reader and the client's end of its stream.
struct Connection {
    client: DuplexStream,
    reader: ReaderStream,
    handle: StreamHandle,
}

struct ReaderStream {
    stream: DuplexStream,
    reader: PacketReader,
}

impl AsyncRead for ReaderStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { stream, reader } = &mut *self;
        reader.poll_read(stream, context, buffer)
    }
}

impl Connection {
    fn new(limits: &Arc<PacketLimits>) -> Self {
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let pending_connections = Arc::new(PendingConnections::new(1));
        let (pending_slot, _) = pending_connections.add(address).unwrap();
        let handle = StreamHandle::default();
        let peer = SocketAddr::new(address, 1);
        let (client, stream) = tokio::io::duplex(2 * MIB);
        Self {
            client,
            reader: ReaderStream {
                stream,
                reader: PacketReader::new(limits.clone(), peer, handle.clone(), pending_slot),
            },
            handle,
        }
    }

    /// Creates a connection whose CONNECT packet is complete.
    async fn connected(limits: &Arc<PacketLimits>) -> Self {
        let mut connection = Self::new(limits);
        let connect = encode_packet(FIRST_BYTE_CONNECT, &[0; 20]);
        connection.client.write_all(&connect).await.unwrap();
        assert_eq!(connection.read().await.unwrap(), connect);
        assert!(connection.reader.reader.pending_slot.is_none());
        connection
    }

    /// Reads once, like `mqtt5`.
    async fn read(&mut self) -> io::Result<Vec<u8>> {
        let mut chunk = [0; 4096];
        let count = self.reader.read(&mut chunk).await?;
        Ok(chunk[..count].to_vec())
    }

    /// Sends `bytes` and returns the error of the next read.
    async fn read_error_after(&mut self, bytes: &[u8]) -> String {
        self.client.write_all(bytes).await.unwrap();
        self.read().await.unwrap_err().to_string()
    }
}

fn limits() -> Arc<PacketLimits> {
    Arc::new(PacketLimits {
        max_packet_size: 65 * MIB,
        packet_timeout: Duration::from_secs(20),
        large_packets: Arc::new(LargePackets::new(ByteBudget::new(128 * MIB))),
        connect_budget: ByteBudget::new(500_000),
    })
}

/// Returns the body of a PUBLISH packet with the topic "t" and the packet identifier 7.
fn publish_body(payload: &[u8]) -> Vec<u8> {
    [&[0, 1, b't', 0, 7], payload].concat()
}

#[tokio::test]
async fn small_packets_are_passed_on_one_at_a_time() {
    let mut connection = Connection::connected(&limits()).await;
    let publish = encode_packet(FIRST_BYTE_PUBLISH_QOS_1, &publish_body(&[b'x'; 300]));
    let bytes = [&PING[..], &publish, &PING].concat();
    connection.client.write_all(&bytes).await.unwrap();
    for packet in [&PING[..], &publish, &PING] {
        assert_eq!(connection.read().await.unwrap(), packet);
        assert!(connection.handle.take_large_payload().is_none());
    }
    drop(connection.client);
    let mut end = [0];
    assert_eq!(connection.reader.read(&mut end).await.unwrap(), 0);
}

#[tokio::test]
async fn packets_that_arrive_byte_by_byte_are_passed_on() {
    let mut connection = Connection::connected(&limits()).await;
    let payload = [b'y'; 5000];
    let large = encode_packet(FIRST_BYTE_PUBLISH_QOS_1, &publish_body(&payload));
    let bytes = [&PING[..], &large, &PING].concat();
    let mut client = connection.client;
    tokio::spawn(async move {
        for byte in bytes {
            client.write_all(&[byte]).await.unwrap();
            tokio::task::yield_now().await;
        }
    });
    let large_without_payload = encode_packet(FIRST_BYTE_PUBLISH_QOS_1, &publish_body(&[]));
    let expected = [&PING[..], &large_without_payload, &PING].concat();
    let mut received = Vec::new();
    let mut byte = [0];
    while connection.reader.read(&mut byte).await.unwrap() > 0 {
        received.push(byte[0]);
        if received.len() == PING.len() + large_without_payload.len() {
            let large_payload = connection.handle.take_large_payload().unwrap();
            assert_eq!(large_payload.payload, payload[..]);
        }
    }
    assert_eq!(received, expected);
}

#[tokio::test]
async fn payload_of_a_large_publish_packet_does_not_pass_through_mqtt5() {
    let limits = limits();
    let budget = ByteBudget::new(MIB);
    let limits = Arc::new(PacketLimits {
        large_packets: Arc::new(LargePackets::new(budget.clone())),
        connect_budget: limits.connect_budget.clone(),
        ..*limits
    });
    for uses_mqtt_v5 in [false, true] {
        let mut connection = Connection::connected(&limits).await;
        connection.handle.set_uses_mqtt_v5(uses_mqtt_v5);
        let payload = vec![b'x'; 100_000];
        // An MQTT 5 packet contains the length of its properties. In MQTT 3.1.1, this byte is a part
        // of the payload.
        let body = publish_body(&[&[0], payload.as_slice()].concat());
        let packet = encode_packet(FIRST_BYTE_PUBLISH_QOS_1, &body);
        connection.client.write_all(&packet).await.unwrap();
        let header_len = if uses_mqtt_v5 { 6 } else { 5 };
        assert_eq!(
            connection.read().await.unwrap(),
            encode_packet(FIRST_BYTE_PUBLISH_QOS_1, &body[..header_len])
        );
        let large = connection.handle.take_large_payload().unwrap();
        assert_eq!(large.payload, body[header_len..]);
        assert_eq!(budget.used(), packet.len());
        drop(large);
        assert_eq!(budget.used(), 0);

        // Nothing takes the payload of a rejected packet. The next read frees it.
        let bytes = [&packet[..], &PING].concat();
        connection.client.write_all(&bytes).await.unwrap();
        connection.read().await.unwrap();
        assert_eq!(budget.used(), packet.len());
        assert_eq!(connection.read().await.unwrap(), PING);
        assert_eq!(budget.used(), 0);
    }
}

#[tokio::test]
async fn packets_over_the_limit_of_their_type_are_rejected_before_their_body_arrives() {
    let limits = limits();
    // The first packet announces a body of 70,000 bytes.
    let large_connect = [FIRST_BYTE_CONNECT, 0xf0, 0xa2, 0x04];
    let error = Connection::new(&limits)
        .read_error_after(&large_connect)
        .await;
    assert_eq!(error, "packet_too_large");
    let error = Connection::new(&limits).read_error_after(&PING).await;
    assert_eq!(error, "no_connect_packet");
    let mut connection = Connection::connected(&limits).await;
    // The packet announces a body of 5,000 bytes.
    let error = connection
        .read_error_after(&[FIRST_BYTE_SUBSCRIBE, 0x88, 0x27])
        .await;
    assert_eq!(error, "packet_too_large");
    let mut connection = Connection::connected(&limits).await;
    // The packet announces a body of 100 MiB.
    let error = connection
        .read_error_after(&[FIRST_BYTE_PUBLISH_QOS_1, 0x80, 0x80, 0x80, 0x32])
        .await;
    assert_eq!(error, "packet_too_large");
    let mut connection = Connection::connected(&limits).await;
    let long_topic = [&[0xff, 0xff][..], "t".repeat(65_535).as_bytes(), &[0, 7]].concat();
    let packet = encode_packet(FIRST_BYTE_PUBLISH_QOS_1, &long_topic);
    assert_eq!(
        connection.read_error_after(&packet).await,
        "packet_too_large"
    );
}

#[tokio::test]
async fn large_connect_packets_use_bounded_memory() {
    let limits = limits();
    // The packet announces a body of 60,000 bytes.
    let header = [FIRST_BYTE_CONNECT, 0xe0, 0xd4, 0x03];
    let mut open = Vec::new();
    for _ in 0..2 {
        let mut connection = Connection::new(&limits);
        connection.client.write_all(&header).await.unwrap();
        assert_eq!(connection.read().await.unwrap(), header);
        open.push(connection);
    }
    let error = Connection::new(&limits).read_error_after(&header).await;
    assert_eq!(error, "too_many_large_connect_packets");
    // A small CONNECT packet is still accepted.
    Connection::connected(&limits).await;
    open.pop();
    let mut connection = Connection::new(&limits);
    connection.client.write_all(&header).await.unwrap();
    assert_eq!(connection.read().await.unwrap(), header);
}

#[tokio::test]
async fn memory_of_a_large_connect_packet_is_reserved_until_the_session_is_dropped() {
    let limits = limits();
    let mut connection = Connection::new(&limits);
    // The packet announces a body of 60,000 bytes.
    let header = [FIRST_BYTE_CONNECT, 0xe0, 0xd4, 0x03];
    connection.client.write_all(&header).await.unwrap();
    assert_eq!(connection.read().await.unwrap(), header);
    let Connection { reader, handle, .. } = connection;
    drop(reader);
    // The session still has the handle, because a last will with a delay is not published yet.
    assert!(limits.connect_budget.used() > 200_000);
    drop(handle);
    assert_eq!(limits.connect_budget.used(), 0);
}

#[tokio::test(start_paused = true)]
async fn stalled_packet_is_aborted_if_another_packet_waits() {
    let limits = limits();
    let mut stalled = Connection::connected(&limits).await;
    // The packet announces a body of 64 MiB.
    let header = [FIRST_BYTE_PUBLISH_QOS_1, 0x80, 0x80, 0x80, 0x20, 0, 1, b't'];
    let started_at = Instant::now();
    stalled.client.write_all(&header).await.unwrap();
    let stalled_task = tokio::spawn(async move {
        let error = stalled.read().await.unwrap_err();
        (error.to_string(), started_at.elapsed())
    });
    tokio::task::yield_now().await;
    let mut other = Connection::connected(&limits).await;
    let packet = encode_packet(FIRST_BYTE_PUBLISH_QOS_1, &publish_body(&[b'x'; 9000]));
    other.client.write_all(&packet).await.unwrap();
    other.read().await.unwrap();
    let (error, duration) = stalled_task.await.unwrap();
    assert_eq!(error, "packet_timeout");
    assert!(duration < MAX_STALL_TIME * 2, "{duration:?}");
    assert_eq!(
        other.handle.take_large_payload().unwrap().payload.len(),
        9000
    );
}

#[tokio::test(start_paused = true)]
async fn unfinished_packet_is_aborted_after_the_packet_timeout() {
    let mut connection = Connection::connected(&limits()).await;
    let started_at = Instant::now();
    let packet = encode_packet(FIRST_BYTE_PUBLISH_QOS_1, &publish_body(&[b'x'; 9000]));
    let error = connection.read_error_after(&packet[..8000]).await;
    assert_eq!(error, "packet_timeout");
    assert_eq!(started_at.elapsed().as_secs(), 20);
}

#[tokio::test(start_paused = true)]
async fn packet_is_aborted_if_there_is_no_memory_until_the_packet_timeout() {
    let budget = ByteBudget::new(MIB);
    let limits = Arc::new(PacketLimits {
        large_packets: Arc::new(LargePackets::new(budget.clone())),
        connect_budget: ByteBudget::new(0),
        ..*limits()
    });
    let _queued_messages = budget.reserve(MIB);
    let mut connection = Connection::connected(&limits).await;
    let packet = encode_packet(FIRST_BYTE_PUBLISH_QOS_1, &publish_body(&[b'x'; 9000]));
    let started_at = Instant::now();
    assert_eq!(connection.read_error_after(&packet).await, "overloaded");
    assert_eq!(started_at.elapsed().as_secs(), 20);
}
