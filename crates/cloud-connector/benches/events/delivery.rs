//! 10,000 events per second, 200 streams, and one reader that does not read: latency and memory.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use test_support::cluster::{API_KEY, ConnectorProcess};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::readers::ReaderProcess;
use super::support::report::{Goal, Measurement};
use super::{ORG_ID, Processes, STREAM_COUNT, STREAM_ORG_COUNT, org_id, support};

const DURATION: Duration = Duration::from_mins(1);
/// Number of events that one transaction inserts.
const BATCH_SIZE: usize = 1000;
const BATCH_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum time from the last event until all readers have received all events.
const DRAIN_TIMEOUT: Duration = Duration::from_mins(2);
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum memory of the role `api`.
const MAX_MEMORY_MIB: f64 = 150.0;
/// Limits of the latency in milliseconds. Two intervals of 100 ms are a part of it: of the sequencer and
/// of the reader in `api`.
const MAX_P50: f64 = 500.0;
const MAX_P99: f64 = 2000.0;

/// A tenth of the events is of the first organization, so that one stream has enough events for a slow
/// reader. The other events are of the other organizations in turn.
const INSERT_EVENTS: &str = "
    INSERT INTO event_outbox (at, type, org_id, account, client_id, data)
    SELECT clock_timestamp(), 'connection.updated',
           CASE WHEN i % 10 = 0 THEN 10000 ELSE 10001 + ($1 * 1000 + i) % 999 END::text, '111000',
           'client-' || i, $2
      FROM generate_series(1, 1000) AS i";

pub async fn measure() -> Result<Vec<Measurement>> {
    let processes = Processes::start().await;
    let memory_before = memory_mib(&processes.api, "VmRSS:")?;
    // The stream of the slow reader is one of the streams of the first organization.
    let stream_counts: Vec<(String, usize)> = (0..STREAM_ORG_COUNT)
        .map(|index| {
            let count = STREAM_COUNT / STREAM_ORG_COUNT - usize::from(index == 0);
            (org_id(index), count)
        })
        .collect();
    let mut readers = ReaderProcess::start(&processes.api.http_url, &stream_counts).await?;
    let mut slow_reader = open_slow_reader(&processes.api).await?;

    let (rate, max_outbox_count) = insert_events(&processes).await?;
    let totals = receive_all(&processes, &mut readers, &stream_counts).await?;
    let peak = memory_mib(&processes.api, "VmHWM:")?;
    let reset_after = read_until_reset(&mut slow_reader).await?;
    ensure!(totals.resets == 0, "{} streams were reset", totals.resets);

    let measurement = |name: &str, details: String, value, unit, goal| Measurement {
        name: name.to_owned(),
        details,
        value,
        unit,
        goal,
    };
    Ok(vec![
        measurement(
            "inserted events",
            format!("at most {max_outbox_count} events without a position"),
            rate,
            "events/s",
            Goal::AtLeast(9_800.0),
        ),
        measurement(
            "from the insertion to the reader, p50",
            format!("{} events to {} streams", totals.events, STREAM_COUNT - 1),
            totals.latency_p50,
            "ms",
            Goal::AtMost(MAX_P50),
        ),
        measurement(
            "from the insertion to the reader, p99",
            format!("longest {:.0} ms", totals.latency_max),
            totals.latency_p99,
            "ms",
            Goal::AtMost(MAX_P99),
        ),
        measurement(
            "peak memory of `api`",
            format!("{memory_before:.1} MiB before"),
            peak,
            "MiB",
            Goal::AtMost(MAX_MEMORY_MIB),
        ),
        measurement(
            "data for the slow reader before it is cut off",
            "with the buffers of the sockets".to_owned(),
            reset_after as f64 / 1024.0 / 1024.0,
            "MiB",
            Goal::None,
        ),
    ])
}

/// Inserts events for [`DURATION`]. Returns the events per second, and the maximum number of events that
/// had no position.
async fn insert_events(processes: &Processes) -> Result<(f64, i64)> {
    let mut database = processes.cluster.connect_to_database().await;
    let data = serde_json::json!({
        "dispatchers": {"rhc-worker-playbook": {"ansible-runner-version": "1.2.3"}, "echo": {}},
        "tags": {"region": "us1", "filler": "x".repeat(100)},
        "canonical_facts": {"insights_id": uuid::Uuid::new_v4(), "fqdn": "host.example"},
        "client_version": "0.2", "changed": ["tags"],
    });
    let (started_at, mut inserted, mut max_outbox_count) = (Instant::now(), 0_usize, 0);
    let mut interval = tokio::time::interval(BATCH_INTERVAL);
    while started_at.elapsed() < DURATION {
        interval.tick().await;
        let insert = sqlx::query(INSERT_EVENTS)
            .bind(i64::try_from(inserted / BATCH_SIZE)?)
            .bind(data.to_string());
        insert.execute(&mut database).await?;
        inserted += BATCH_SIZE;
        if inserted.is_multiple_of(BATCH_SIZE * 50) {
            let (_, outbox_count) = processes.positions().await?;
            max_outbox_count = max_outbox_count.max(outbox_count);
        }
    }
    let rate = inserted as f64 / started_at.elapsed().as_secs_f64();
    Ok((rate, max_outbox_count))
}

/// The sums of the reports. The latencies are those of the first report, which has nearly all events.
struct Totals {
    events: u64,
    resets: u64,
    latency_p50: f64,
    latency_p99: f64,
    latency_max: f64,
}

/// Waits until each stream has received all events of its organization.
async fn receive_all(
    processes: &Processes,
    readers: &mut ReaderProcess,
    stream_counts: &[(String, usize)],
) -> Result<Totals> {
    processes.wait_until_sequenced().await?;
    let sql = "SELECT org_id, count(*) FROM events GROUP BY org_id";
    let mut database = processes.cluster.connect_to_database().await;
    let rows: Vec<(String, i64)> = sqlx::query_as(sql).fetch_all(&mut database).await?;
    let expected: BTreeMap<String, i64> = rows.into_iter().collect();
    let first = readers.report().await?;
    let mut min_events = first.min_events.clone();
    let mut totals = Totals {
        events: first.events,
        resets: first.resets,
        latency_p50: first.latency_p50,
        latency_p99: first.latency_p99,
        latency_max: first.latency_max,
    };
    let deadline = Instant::now() + DRAIN_TIMEOUT;
    loop {
        // All streams together, because the streams that were late differ between reports.
        let expected_events: i64 = stream_counts
            .iter()
            .map(|(org_id, count)| expected[org_id] * i64::try_from(*count).unwrap_or(0))
            .sum();
        if totals.events == u64::try_from(expected_events)? {
            return Ok(totals);
        }
        ensure!(
            Instant::now() < deadline && totals.events < u64::try_from(expected_events)?,
            "{} of {expected_events} events were received: {min_events:?}",
            totals.events
        );
        tokio::time::sleep(POLL_INTERVAL).await;
        let next = readers.report().await?;
        totals.events += next.events;
        totals.resets += next.resets;
        totals.latency_max = totals.latency_max.max(next.latency_max);
        for (org_id, count) in next.min_events {
            *min_events.entry(org_id).or_default() += count;
        }
    }
}

/// Opens a stream of the first organization that is not read.
async fn open_slow_reader(api: &ConnectorProcess) -> Result<TcpStream> {
    let mut socket = TcpStream::connect(api.http_url.trim_start_matches("http://")).await?;
    let request = format!(
        "GET /api/cloud-connector/v2/events HTTP/1.1\r\nhost: localhost\r\n\
         x-rh-cloud-connector-client-id: tester\r\nx-rh-cloud-connector-psk: {API_KEY}\r\n\
         x-rh-cloud-connector-org-id: {ORG_ID}\r\n\r\n"
    );
    socket.write_all(request.as_bytes()).await?;
    Ok(socket)
}

/// Reads the stream until the event `reset`, or until its end: the connector closes a connection whose
/// caller does not read for long. Returns the number of bytes.
async fn read_until_reset(socket: &mut TcpStream) -> Result<usize> {
    const RESET: &[u8] = b"event: reset\n";
    let (mut bytes, mut searched) = (Vec::new(), 0);
    loop {
        let read = tokio::time::timeout(DRAIN_TIMEOUT, socket.read_buf(&mut bytes)).await??;
        if read == 0 {
            return Ok(bytes.len());
        }
        let found = bytes[searched..]
            .windows(RESET.len())
            .position(|it| it == RESET);
        if let Some(position) = found {
            return Ok(searched + position);
        }
        searched = bytes.len().saturating_sub(RESET.len());
    }
}

fn memory_mib(api: &ConnectorProcess, field: &str) -> Result<f64> {
    support::process::memory_mib(u32::try_from(api.pid())?, field)
}
