//! Tests of the packet reader with streams in memory.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::time::Instant;

use super::large_body::MAX_STALL_TIME;
use super::*;
use crate::packet_format::encode_packet;
use crate::recent_rejections::RecentRejections;
use protocol::{MAX_RESPONSE_BYTES, TRUNCATED_PAYLOAD_BYTES};
use service::{ByteBudget, ClientBudgetSettings};

mod budgets;

const MIB: usize = 1024 * 1024;
const FIRST_BYTE_CONNECT: u8 = 0x10;
const FIRST_BYTE_PUBLISH_QOS_0: u8 = 0x30;
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
    stream: TestStream,
    reader: PacketReader,
}

struct TestStream {
    stream: DuplexStream,
    is_closed_by_peer: Arc<AtomicBool>,
}

impl PacketSource for TestStream {
    fn is_closed_by_peer(&self) -> bool {
        self.is_closed_by_peer.load(Ordering::Relaxed)
    }
}

impl AsyncRead for TestStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
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
    async fn new(limits: &Arc<PacketLimits>) -> Self {
        Self::with_version(limits, false).await
    }

    /// Creates a connection that has passed on its CONNECT packet.
    async fn with_version(limits: &Arc<PacketLimits>, uses_mqtt_v5: bool) -> Self {
        let handle = StreamHandle::default();
        let connected_client = ConnectedClient {
            id: ClientId::new("c").unwrap(),
            peer: SocketAddr::from((Ipv4Addr::LOCALHOST, 1)),
            certificate_name: None,
            uses_mqtt_v5,
        };
        let (client, stream) = tokio::io::duplex(2 * MIB);
        let connect = encode_packet(FIRST_BYTE_CONNECT, &[0; 5000]);
        let reader = PacketReader::new(
            limits.clone(),
            connected_client,
            handle.clone(),
            connect.clone(),
            Vec::new(),
        );
        let stream = TestStream {
            stream,
            is_closed_by_peer: Arc::default(),
        };
        let mut connection = Self {
            client,
            reader: ReaderStream { stream, reader },
            handle,
        };
        let mut received = vec![0; connect.len()];
        connection.reader.read_exact(&mut received).await.unwrap();
        assert_eq!(received, connect);
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
    limits_with(ByteBudget::new(128 * MIB), UNLIMITED_CLIENT)
}

const UNLIMITED_CLIENT: ClientBudgetSettings = ClientBudgetSettings {
    messages_per_second: 1_000_000,
    message_burst: 1_000_000,
    bytes_per_second: u32::MAX,
    byte_burst: u32::MAX,
};

fn limits_with(
    message_budget: ByteBudget,
    client_budget: ClientBudgetSettings,
) -> Arc<PacketLimits> {
    Arc::new(PacketLimits {
        max_packet_size: 65 * MIB,
        packet_timeout: Duration::from_secs(20),
        large_packets: Arc::new(LargePackets::new(message_budget)),
        client_budgets: Arc::new(ClientBudgets::new(client_budget)),
        budget_reports: Arc::new(BudgetReports::new()),
        rejections: Arc::new(Rejections::new(Arc::new(RecentRejections::new(Arc::new(
            domain::SystemClock,
        ))))),
    })
}

/// Returns the body of a PUBLISH packet with the topic "t" and the packet identifier 7.
fn publish_body(payload: &[u8]) -> Vec<u8> {
    [&[0, 1, b't', 0, 7], payload].concat()
}

#[tokio::test]
async fn small_packets_are_passed_on_one_at_a_time() {
    let mut connection = Connection::new(&limits()).await;
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
    let mut connection = Connection::new(&limits()).await;
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
    let budget = ByteBudget::new(MIB);
    let limits = limits_with(budget.clone(), UNLIMITED_CLIENT);
    for uses_mqtt_v5 in [false, true] {
        let mut connection = Connection::with_version(&limits, uses_mqtt_v5).await;
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
    let mut connection = Connection::new(&limits).await;
    // The packet announces a body of 5,000 bytes.
    let error = connection
        .read_error_after(&[FIRST_BYTE_SUBSCRIBE, 0x88, 0x27])
        .await;
    assert_eq!(error, "packet_too_large");
    let mut connection = Connection::new(&limits).await;
    // The packet announces a body of 100 MiB.
    let error = connection
        .read_error_after(&[FIRST_BYTE_PUBLISH_QOS_1, 0x80, 0x80, 0x80, 0x32])
        .await;
    assert_eq!(error, "packet_too_large");
    let mut connection = Connection::new(&limits).await;
    let long_topic = [&[0xff, 0xff][..], "t".repeat(65_535).as_bytes(), &[0, 7]].concat();
    let packet = encode_packet(FIRST_BYTE_PUBLISH_QOS_1, &long_topic);
    assert_eq!(
        connection.read_error_after(&packet).await,
        "packet_too_large"
    );
}

#[tokio::test]
async fn memory_of_a_large_connect_packet_is_reserved_until_the_session_is_dropped() {
    let budget = ByteBudget::new(MIB);
    let connection = Connection::new(&limits()).await;
    let reservation = budget.reserve(100_000);
    connection.handle.set_connect_reservation(reservation);
    let Connection { reader, handle, .. } = connection;
    drop(reader);
    // The session still has the handle, because a last will with a delay is not published yet.
    assert_eq!(budget.used(), 100_000);
    drop(handle);
    assert_eq!(budget.used(), 0);
}

#[tokio::test]
async fn payload_that_is_too_large_for_any_message_is_truncated_while_it_is_received() {
    let budget = ByteBudget::new(MIB);
    let limits = limits_with(budget.clone(), UNLIMITED_CLIENT);
    for uses_mqtt_v5 in [false, true] {
        let mut connection = Connection::with_version(&limits, uses_mqtt_v5).await;
        let payload: Vec<u8> = (0..=250).cycle().take(4 * MIB).collect();
        let headers = if uses_mqtt_v5 {
            &[0, 1, b't', 0, 7, 0][..]
        } else {
            &[0, 1, b't', 0, 7]
        };
        let packet = encode_packet(FIRST_BYTE_PUBLISH_QOS_1, &[headers, &payload].concat());
        let write = connection.client.write_all(&packet);
        let read = async {
            let mut chunk = [0; 4096];
            let count = connection.reader.read(&mut chunk).await.unwrap();
            chunk[..count].to_vec()
        };
        let (written, received) = tokio::join!(write, read);
        written.unwrap();
        assert_eq!(received, encode_packet(FIRST_BYTE_PUBLISH_QOS_1, headers));
        let large = connection.handle.take_large_payload().unwrap();
        assert_eq!(large.payload, payload[..TRUNCATED_PAYLOAD_BYTES]);
        let original = large.truncated_from.unwrap();
        assert_eq!(original.size_bytes, payload.len() as u64);
        let message = protocol::InboundMessage {
            topic: "t".into(),
            payload: payload.into(),
            retained: false,
            is_operator_replay: false,
            is_last_will: None,
            is_takeover: false,
            received_at: domain::Timestamp::UNIX_EPOCH,
            ingest_stamp: None,
            truncated_from: None,
        };
        assert_eq!(original.sha256, message.payload_sha256());
        assert!(large.reservation.bytes() < 70_000);
        drop(large.reservation);
        // The next packet is read from its beginning.
        connection.client.write_all(&PING).await.unwrap();
        assert_eq!(connection.read().await.unwrap(), PING);
        assert_eq!(budget.used(), 0);
    }
}

#[tokio::test]
async fn largest_accepted_payload_is_not_truncated() {
    let mut connection = Connection::new(&limits()).await;
    let body = publish_body(&vec![b'x'; MAX_RESPONSE_BYTES]);
    let packet = encode_packet(FIRST_BYTE_PUBLISH_QOS_1, &body);
    let mut client = connection.client;
    tokio::spawn(async move { client.write_all(&packet).await.unwrap() });
    let mut first_byte = [0];
    connection.reader.read_exact(&mut first_byte).await.unwrap();
    let large = connection.handle.take_large_payload().unwrap();
    assert_eq!(large.payload.len(), MAX_RESPONSE_BYTES);
    assert_eq!(large.truncated_from, None);
}

#[tokio::test(start_paused = true)]
async fn stalled_packet_is_aborted_if_another_packet_waits() {
    let limits = limits();
    let started_at = Instant::now();
    // The packets announce bodies of 2 MiB, 64 MiB in total.
    let header = [FIRST_BYTE_PUBLISH_QOS_1, 0x80, 0x80, 0x80, 0x01, 0, 1, b't'];
    let mut stalled_tasks = Vec::new();
    for _ in 0..32 {
        let mut stalled = Connection::new(&limits).await;
        stalled.client.write_all(&header).await.unwrap();
        stalled_tasks.push(tokio::spawn(async move {
            let error = stalled.read().await.unwrap_err();
            (error.to_string(), started_at.elapsed())
        }));
        tokio::task::yield_now().await;
    }
    let mut other = Connection::new(&limits).await;
    let packet = encode_packet(FIRST_BYTE_PUBLISH_QOS_1, &publish_body(&[b'x'; 9000]));
    other.client.write_all(&packet).await.unwrap();
    other.read().await.unwrap();
    let (error, duration) = stalled_tasks.remove(0).await.unwrap();
    assert_eq!(error, "packet_timeout");
    assert!(duration < MAX_STALL_TIME * 2, "{duration:?}");
    assert_eq!(
        other.handle.take_large_payload().unwrap().payload.len(),
        9000
    );
}

#[tokio::test(start_paused = true)]
async fn unfinished_packet_is_aborted_after_the_packet_timeout() {
    let mut connection = Connection::new(&limits()).await;
    let started_at = Instant::now();
    let packet = encode_packet(FIRST_BYTE_PUBLISH_QOS_1, &publish_body(&[b'x'; 9000]));
    let error = connection.read_error_after(&packet[..8000]).await;
    assert_eq!(error, "packet_timeout");
    assert_eq!(started_at.elapsed().as_secs(), 20);
}

#[tokio::test(start_paused = true)]
async fn packet_timeout_applies_to_each_mebibyte() {
    let mut connection = Connection::new(&limits()).await;
    let started_at = Instant::now();
    // The packet announces a body of 3 MiB.
    let header = [FIRST_BYTE_PUBLISH_QOS_1, 0x80, 0x80, 0xc0, 0x01];
    assert_eq!(connection.read_error_after(&header).await, "packet_timeout");
    assert_eq!(started_at.elapsed().as_secs(), 60);
}

#[tokio::test(start_paused = true)]
async fn packet_is_aborted_if_there_is_no_memory_until_the_packet_timeout() {
    let budget = ByteBudget::new(MIB);
    let limits = limits_with(budget.clone(), UNLIMITED_CLIENT);
    let _queued_messages = budget.reserve(MIB);
    let mut connection = Connection::new(&limits).await;
    let packet = encode_packet(FIRST_BYTE_PUBLISH_QOS_1, &publish_body(&[b'x'; 9000]));
    let started_at = Instant::now();
    assert_eq!(connection.read_error_after(&packet).await, "overloaded");
    assert_eq!(started_at.elapsed().as_secs(), 20);
}
