//! Clients send large or unfinished packets to the embedded broker.

use std::time::{Duration, Instant};

use anyhow::Result;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _};
use test_support::Connector;
use test_support::mqtt::{Connect, RawClient, control_out_topic, data_out_topic, online_message};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use super::sampling::{self, MeasuredProcess};
use super::support::report::{Goal, Measurement};

/// Number of sockets that send an unfinished CONNECT.
const UNFINISHED_CONNECTS: usize = 10_000;
/// Number of bytes that each unfinished CONNECT sends.
const UNFINISHED_BYTES: usize = 740 * 1024;
/// Maximum time for which a sender waits until the broker reads.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for which the sockets stay open after the last of them has sent its bytes. The broker reads
/// the bytes from the kernel's buffers in this time.
const HOLD_TIME: Duration = Duration::from_secs(20);
/// Number of sockets that send at the same time.
const CONCURRENT_SENDERS: usize = 2_000;

/// Number of connected clients that publish while the database is locked.
const PUBLISHING_CLIENTS: usize = 2_000;
const PUBLISHED_BYTES: usize = 1_000_000;
/// Time for which the database is locked.
const LOCK_TIME: Duration = Duration::from_secs(30);

/// First byte and remaining length of a CONNECT with 1,000,000 bytes.
const CONNECT_HEADER: [u8; 4] = [0x10, 0xc0, 0x84, 0x3d];
/// Number of source addresses. The broker limits the connections per address.
const SOURCE_ADDRESSES: usize = 200;

fn measured_process(connector: &Connector) -> [MeasuredProcess; 1] {
    [MeasuredProcess {
        name: "the process",
        pid: connector.pid(),
    }]
}

/// Opens many sockets that send an unfinished CONNECT, and connects a well-behaved client at the
/// same time.
pub async fn measure_unfinished_connects() -> Result<Vec<Measurement>> {
    rlimit::increase_nofile_limit(2 * UNFINISHED_CONNECTS as u64)?;
    let connector = Connector::start().await;
    let address = connector.mqtt_address.clone();
    let good_client = tokio::spawn(connect_good_client(address.clone()));
    let mut sockets = Vec::with_capacity(UNFINISHED_CONNECTS);
    let mut senders = tokio::task::JoinSet::new();
    for number in 0..UNFINISHED_CONNECTS {
        if senders.len() >= CONCURRENT_SENDERS
            && let Some(socket) = senders.join_next().await
        {
            sockets.extend(socket?);
        }
        senders.spawn(send_unfinished_connect(address.clone(), number));
    }
    sockets.extend(senders.join_all().await.into_iter().flatten());
    let open_sockets = sockets.len();
    tokio::time::sleep(HOLD_TIME).await;
    let connect_seconds = good_client.await?.as_secs_f64();
    drop(sockets);
    let mut measurements = sampling::measure(
        "10,000 unfinished CONNECT packets",
        &measured_process(&connector),
    )
    .await?;
    measurements.push(Measurement {
        name: "good client during the unfinished CONNECT packets".to_owned(),
        details: format!("from the first attempt to the CONNACK; {open_sockets} sockets were open"),
        value: connect_seconds,
        unit: "s",
        goal: Goal::None,
    });
    Ok(measurements)
}

/// Returns the socket, or `None` if the broker closed it.
async fn send_unfinished_connect(address: String, number: usize) -> Option<TcpStream> {
    let socket = TcpSocket::new_v4().ok()?;
    let last_octet = u8::try_from(2 + number % SOURCE_ADDRESSES).ok()?;
    socket.bind(([127, 0, 0, last_octet], 0).into()).ok()?;
    let mut socket = socket.connect(address.parse().ok()?).await.ok()?;
    let mut packet = vec![b'x'; UNFINISHED_BYTES];
    packet[..CONNECT_HEADER.len()].copy_from_slice(&CONNECT_HEADER);
    match timeout(SEND_TIMEOUT, socket.write_all(&packet)).await {
        Ok(Err(_)) => None,
        Ok(Ok(())) | Err(_) => Some(socket),
    }
}

/// Connects during the attack. Tries again if the broker closes the socket. Returns the time until
/// the broker accepted the connection.
async fn connect_good_client(address: String) -> Duration {
    // The attack has begun when this client connects.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let started_at = Instant::now();
    loop {
        let mut client = RawClient::connect_tcp(&address).await;
        let connect = Connect::new("good-client");
        if let Ok(0) = timeout(SEND_TIMEOUT, client.send_connect(&connect)).await {
            return started_at.elapsed();
        }
    }
}

/// Lets many connected clients publish large messages while another program locks the database.
pub async fn measure_publishes_while_the_database_is_locked() -> Result<Vec<Measurement>> {
    rlimit::increase_nofile_limit(2 * PUBLISHING_CLIENTS as u64)?;
    let connector = Connector::start().await;
    let mut clients = Vec::with_capacity(PUBLISHING_CLIENTS);
    for number in 0..PUBLISHING_CLIENTS {
        let client_id = format!("client-{number}");
        let mut client =
            RawClient::connect(&connector.mqtt_address, &Connect::new(&client_id)).await;
        client
            .must_publish(&control_out_topic(&client_id), &online_message())
            .await;
        clients.push((client_id, client));
    }
    let mut database = SqliteConnectOptions::new()
        .filename(connector.data_dir().join("cloud-connector.db"))
        .connect()
        .await?;
    sqlx::query("BEGIN IMMEDIATE")
        .execute(&mut database)
        .await?;
    let mut senders = tokio::task::JoinSet::new();
    for (client_id, mut client) in clients {
        senders.spawn(async move {
            let payload = vec![b'x'; PUBLISHED_BYTES];
            let topic = data_out_topic(&client_id);
            let _ = timeout(LOCK_TIME, client.publish(&topic, &payload)).await;
            client
        });
    }
    tokio::time::sleep(LOCK_TIME).await;
    sqlx::query("ROLLBACK").execute(&mut database).await?;
    database.close().await?;
    let clients = senders.join_all().await;
    let measurements = sampling::measure(
        "2,000 publishes of 1 MB, database locked",
        &measured_process(&connector),
    )
    .await;
    drop(clients);
    measurements
}
