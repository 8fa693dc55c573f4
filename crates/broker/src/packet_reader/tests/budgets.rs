//! Tests of clients that are over their budget.

use super::*;

/// Three messages at once, then one message every half second.
const SMALL_BUDGET: ClientBudgetSettings = ClientBudgetSettings {
    messages_per_second: 2,
    message_burst: 3,
    bytes_per_second: 1000,
    byte_burst: 1_000_000,
};

fn small_budget() -> Arc<PacketLimits> {
    limits_with(ByteBudget::new(128 * MIB), SMALL_BUDGET)
}

fn qos_1(payload: &[u8]) -> Vec<u8> {
    encode_packet(FIRST_BYTE_PUBLISH_QOS_1, &publish_body(payload))
}

/// Returns a PUBLISH packet with QoS 0 and the topic "t".
fn qos_0(payload: &[u8]) -> Vec<u8> {
    let body = [&[0, 1, b't'], payload].concat();
    encode_packet(FIRST_BYTE_PUBLISH_QOS_0, &body)
}

/// Returns a heartbeat. The topic tells one heartbeat from another.
fn heartbeat(topic: u8) -> Vec<u8> {
    encode_packet(FIRST_BYTE_PUBLISH_QOS_0, &[0, 1, topic])
}

impl Connection {
    async fn write(&mut self, packets: &[Vec<u8>]) {
        self.client.write_all(&packets.concat()).await.unwrap();
    }

    /// Reads the next packet. Returns the packet and the time in milliseconds until it was passed on.
    async fn read_after(&mut self, started_at: Instant) -> (Vec<u8>, u128) {
        let packet = self.read().await.unwrap();
        (packet, started_at.elapsed().as_millis())
    }

    /// Reads packets until the client is over its budget.
    async fn exceed_budget(&mut self) {
        for _ in 0..4 {
            self.write(&[qos_1(b"first")]).await;
            assert_eq!(self.read().await.unwrap(), qos_1(b"first"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn qos_1_messages_over_the_budget_are_delayed() {
    let mut connection = Connection::new(&small_budget()).await;
    let packets: Vec<Vec<u8>> = (b'0'..b'7').map(|n| qos_1(&[n])).collect();
    connection.write(&packets).await;
    let started_at = Instant::now();
    let mut times = Vec::new();
    for packet in packets {
        let (received, time) = connection.read_after(started_at).await;
        assert_eq!(received, packet);
        times.push(time);
    }
    // A message is charged when it is passed on, and delays the next one.
    assert_eq!(times, [0, 0, 0, 0, 500, 1000, 1500]);
}

#[tokio::test(start_paused = true)]
async fn large_message_waits_for_its_budget_before_memory_is_reserved() {
    let budget = ByteBudget::new(MIB);
    let limits = limits_with(budget.clone(), SMALL_BUDGET);
    let mut connection = Connection::new(&limits).await;
    let packet = qos_1(&vec![b'x'; 999_000]);
    // The first message leaves 1,000 bytes, and the second one exceeds the budget by 998 s.
    connection.write(&[packet.clone(), packet.clone()]).await;
    for _ in 0..2 {
        connection.read().await.unwrap();
        assert!(connection.handle.take_large_payload().is_some());
    }
    connection.write(&[packet]).await;
    let started_at = Instant::now();
    let read = connection.read();
    let mut read = std::pin::pin!(read);
    assert!(
        tokio::time::timeout(Duration::from_secs(997), &mut read)
            .await
            .is_err()
    );
    assert_eq!(budget.used(), 0);
    read.await.unwrap();
    assert_eq!(started_at.elapsed().as_secs(), 998);
}

#[tokio::test(start_paused = true)]
async fn reconnecting_does_not_refill_the_budget_and_waiting_costs_nothing() {
    let limits = small_budget();
    Connection::new(&limits).await.exceed_budget().await;
    let started_at = Instant::now();
    for _ in 0..3 {
        // The client gives up after 100 ms.
        let mut connection = Connection::new(&limits).await;
        connection.write(&[qos_1(b"next")]).await;
        let read = tokio::time::timeout(Duration::from_millis(100), connection.read());
        assert!(read.await.is_err());
    }
    let mut connection = Connection::new(&limits).await;
    connection.write(&[qos_1(b"next")]).await;
    let (packet, time) = connection.read_after(started_at).await;
    assert_eq!((packet, time), (qos_1(b"next"), 500));
}

#[tokio::test(start_paused = true)]
async fn qos_0_messages_over_the_budget_are_dropped() {
    let mut connection = Connection::new(&small_budget()).await;
    connection.exceed_budget().await;
    let large = qos_0(&vec![b'x'; 100_000]);
    connection
        .write(&[qos_0(b"small"), large, qos_0(b"small"), qos_1(b"last")])
        .await;
    let started_at = Instant::now();
    let (packet, time) = connection.read_after(started_at).await;
    assert_eq!((packet, time), (qos_1(b"last"), 500));
    assert!(connection.handle.take_large_payload().is_none());
}

#[tokio::test(start_paused = true)]
async fn packets_are_dropped_at_a_limited_rate() {
    let mut connection = Connection::new(&small_budget()).await;
    connection.exceed_budget().await;
    let dropped: Vec<Vec<u8>> = vec![qos_0(&vec![b'x'; 60_000]); 20];
    connection.write(&dropped).await;
    // PUBACK is neither delayed nor dropped, so it shows when the packets before it were read.
    let puback = vec![0x40, 2, 0, 1];
    connection.write(std::slice::from_ref(&puback)).await;
    let started_at = Instant::now();
    let (packet, time) = connection.read_after(started_at).await;
    assert_eq!(packet, puback);
    // 1.2 MB at 3 MB per second.
    assert!((400..450).contains(&time), "{time} ms");
}

#[tokio::test(start_paused = true)]
async fn latest_of_several_heartbeats_is_forwarded_when_the_client_sends_nothing_more() {
    let mut connection = Connection::new(&small_budget()).await;
    connection.exceed_budget().await;
    connection
        .write(&[heartbeat(b'1'), qos_0(b"dropped"), heartbeat(b'2')])
        .await;
    let started_at = Instant::now();
    let (packet, time) = connection.read_after(started_at).await;
    assert_eq!((packet, time), (heartbeat(b'2'), 500));
    // The forwarded heartbeat is charged. The next one waits, too.
    connection.write(&[heartbeat(b'3')]).await;
    let (packet, time) = connection.read_after(started_at).await;
    assert_eq!((packet, time), (heartbeat(b'3'), 1000));
}

#[tokio::test(start_paused = true)]
async fn deferred_heartbeat_is_forwarded_before_the_messages_that_follow_it() {
    let mut connection = Connection::new(&small_budget()).await;
    connection.exceed_budget().await;
    connection
        .write(&[heartbeat(b'1'), qos_1(b"offline")])
        .await;
    assert_eq!(connection.read().await.unwrap(), heartbeat(b'1'));
    assert_eq!(connection.read().await.unwrap(), qos_1(b"offline"));
}

#[tokio::test(start_paused = true)]
async fn deferred_heartbeat_is_not_forwarded_after_the_end_of_the_connection() {
    let mut connection = Connection::new(&small_budget()).await;
    connection.exceed_budget().await;
    connection.write(&[heartbeat(b'1')]).await;
    drop(connection.client);
    let mut end = [0];
    assert_eq!(connection.reader.read(&mut end).await.unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn delay_ends_when_the_client_closes_the_connection() {
    let limits = limits_with(
        ByteBudget::new(128 * MIB),
        ClientBudgetSettings {
            bytes_per_second: 1,
            byte_burst: 100,
            ..SMALL_BUDGET
        },
    );
    let mut connection = Connection::new(&limits).await;
    connection
        .write(&[qos_1(&[b'x'; 2000]), qos_1(b"waits for half an hour")])
        .await;
    connection.read().await.unwrap();
    let is_closed = connection.reader.stream.is_closed_by_peer.clone();
    let started_at = Instant::now();
    let close = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        is_closed.store(true, Ordering::Relaxed);
    };
    let ((), packet) = tokio::join!(close, connection.read());
    assert!(packet.unwrap().is_empty());
    assert!(started_at.elapsed() < Duration::from_secs(6));
}

#[tokio::test(start_paused = true)]
async fn pings_and_subscriptions_are_charged_but_acknowledgements_are_not() {
    let mut connection = Connection::new(&small_budget()).await;
    let puback = vec![0x40, 2, 0, 1];
    let subscribe = encode_packet(FIRST_BYTE_SUBSCRIBE, &[0, 1, 0, 1, b't', 1]);
    let mut packets = vec![puback; 10];
    packets.extend([
        PING.to_vec(),
        subscribe,
        PING.to_vec(),
        PING.to_vec(),
        PING.to_vec(),
    ]);
    connection.write(&packets).await;
    let started_at = Instant::now();
    let mut times = Vec::new();
    for packet in packets {
        let (received, time) = connection.read_after(started_at).await;
        assert_eq!(received, packet);
        times.push(time);
    }
    assert_eq!(times[10..], [0, 0, 0, 0, 500]);
    assert!(times[..10].iter().all(|time| *time == 0));
}
