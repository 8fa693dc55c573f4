//! A packet on an MQTT connection of the API that is larger than any message.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use test_support::CONDITION_TIMEOUT;
use test_support::cluster::Cluster;

/// Size of the large packet. The limit is 2 MiB.
const PACKET_BYTES: usize = 128 * 1024 * 1024;
/// The sender can fill the buffers of the operating system before it notices that the connection
/// is closed.
const MAX_SENT_BYTES: usize = 32 * 1024 * 1024;

/// Accepts an MQTT connection and sends CONNACK.
async fn accept(listener: &TcpListener) -> TcpStream {
    let (mut stream, _) = timeout(CONDITION_TIMEOUT, listener.accept())
        .await
        .expect("timed out waiting for a connection")
        .unwrap();
    let mut connect = [0; 1024];
    assert_ne!(stream.read(&mut connect).await.unwrap(), 0);
    stream.write_all(&[0x20, 2, 0, 0]).await.unwrap();
    stream
}

/// Sends a PUBLISH packet with QoS 0. Returns the number of sent bytes when the peer closes the
/// connection, or after the whole packet.
async fn send_large_publish(stream: &mut TcpStream) -> usize {
    let mut header = vec![0x30];
    let mut length = PACKET_BYTES;
    while length > 0 {
        let more = if length > 0x7f { 0x80 } else { 0 };
        header.push(u8::try_from(length & 0x7f).unwrap() | more);
        length >>= 7;
    }
    header.extend_from_slice(b"\0\x05topic");
    let mut sent = header.len();
    stream.write_all(&header).await.unwrap();
    let chunk = vec![b'x'; 65536];
    while sent < PACKET_BYTES {
        match timeout(Duration::from_secs(10), stream.write(&chunk)).await {
            Ok(Ok(count)) => sent += count,
            Ok(Err(_)) | Err(_) => break,
        }
    }
    sent
}

#[tokio::test]
async fn packet_over_the_limit_is_not_read_and_the_api_reconnects() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("mqtt://{}", listener.local_addr().unwrap());
    let cluster = Cluster::new().await.set("mqtt.url", url);
    // The API has one connection that publishes and one that receives responses.
    let accept_both = async { [accept(&listener).await, accept(&listener).await] };
    let (api, streams) = tokio::join!(cluster.start(&["api"]), accept_both);
    let mut new_streams = Vec::new();
    for mut stream in streams {
        let sent = send_large_publish(&mut stream).await;
        assert!(
            sent <= MAX_SENT_BYTES,
            "the API accepted {sent} bytes of a packet"
        );
        drop(stream);
        new_streams.push(accept(&listener).await);
    }
    api.wait_until_ready().await;
}
