//! The process that reads event streams.
//!
//! Its arguments are the URL and one argument `organization=count` for each organization. It prints a line
//! when all streams are open. For each line on stdin it prints a report about the events since the previous
//! report, and it ends with stdin.

use std::collections::BTreeMap;
use std::io::{BufRead as _, Write as _};
use std::process::Stdio;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use domain::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use test_support::cluster::API_KEY;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::support::report::quantile;

/// First argument of the process.
const ARGUMENT: &str = "readers";

/// What the streams have received since the previous report.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Number of events of the stream with the fewest events, by organization.
    pub min_events: BTreeMap<String, u64>,
    pub events: u64,
    pub resets: u64,
    /// Time from the insertion of an event to its arrival, in milliseconds.
    pub latency_p50: f64,
    pub latency_p99: f64,
    pub latency_max: f64,
}

/// What one stream has received.
#[derive(Default)]
struct Stream {
    event_count: u64,
    resets: u64,
    latencies: Vec<f64>,
    is_ended: bool,
}

/// The process of the readers. Dropping the value ends it.
pub struct ReaderProcess {
    _child: Child,
    stdin: ChildStdin,
    stdout: Lines<BufReader<ChildStdout>>,
}

impl ReaderProcess {
    /// Starts the process at the lowest priority, and waits until all streams are open.
    pub async fn start(url: &str, stream_counts: &[(String, usize)]) -> Result<Self> {
        let program = std::env::current_exe()?;
        let orgs = stream_counts.iter();
        let mut child = Command::new("nice")
            .args(["-n", "19"])
            .arg(program)
            .args([ARGUMENT, url])
            .args(orgs.map(|(org_id, count)| format!("{org_id}={count}")))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let stdin = child.stdin.take().context("stdin is not piped")?;
        let stdout = child.stdout.take().context("stdout is not piped")?;
        let mut process = Self {
            _child: child,
            stdin,
            stdout: BufReader::new(stdout).lines(),
        };
        process.read_line().await?;
        Ok(process)
    }

    pub async fn report(&mut self) -> Result<Report> {
        self.stdin.write_all(b"report\n").await?;
        let line = self.read_line().await?;
        Ok(serde_json::from_str(&line)?)
    }

    async fn read_line(&mut self) -> Result<String> {
        let line = self.stdout.next_line().await?;
        line.context("the process of the readers has ended")
    }
}

/// Returns the arguments if this process is the process of the readers.
pub fn reader_arguments() -> Option<Vec<String>> {
    let mut arguments = std::env::args().skip(1);
    let is_reader = arguments.next().as_deref() == Some(ARGUMENT);
    is_reader.then(|| arguments.filter(|it| !it.starts_with("--")).collect())
}

/// Runs the process of the readers.
pub fn run(arguments: &[String]) -> Result<()> {
    let (url, orgs) = arguments.split_first().context("the URL is missing")?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let mut streams = Vec::new();
    let (report_requests, mut requests) = tokio::sync::mpsc::channel::<()>(1);
    std::thread::spawn(move || {
        for _ in std::io::stdin().lock().lines() {
            let _ = report_requests.blocking_send(());
        }
    });
    runtime.block_on(async {
        for org in orgs {
            let (org_id, count) = org.split_once('=').context("not organization=count")?;
            for _ in 0..count.parse::<usize>()? {
                let stream = Arc::<Mutex<Stream>>::default();
                open_stream(url, org_id, stream.clone()).await?;
                streams.push((org_id.to_owned(), stream));
            }
        }
        println!("open");
        while requests.recv().await.is_some() {
            let line = serde_json::to_string(&report(&streams)?)?;
            println!("{line}");
            std::io::stdout().flush()?;
        }
        Ok(())
    })
}

/// Opens a stream, and starts a task that reads it.
async fn open_stream(url: &str, org_id: &str, stream: Arc<Mutex<Stream>>) -> Result<()> {
    // A client of its own has a connection of its own, like callers on different machines.
    let request = test_support::http_client()
        .get(format!("{url}/api/cloud-connector/v2/events"))
        .header("x-rh-cloud-connector-client-id", "tester")
        .header("x-rh-cloud-connector-psk", API_KEY)
        .header("x-rh-cloud-connector-org-id", org_id);
    let mut response = request.send().await?;
    ensure!(response.status().is_success(), "{}", response.status());
    let opening = response.chunk().await?;
    ensure!(opening.is_some(), "the stream has ended");
    tokio::spawn(async move {
        let mut unread = Vec::new();
        while let Ok(Some(chunk)) = response.chunk().await {
            unread.extend_from_slice(&chunk);
            let received_at = Timestamp::now();
            let mut start = 0;
            while let Some(length) = unread[start..].windows(2).position(|it| it == b"\n\n") {
                let block = String::from_utf8_lossy(&unread[start..start + length]);
                stream.lock().add_block(&block, received_at);
                start += length + 2;
            }
            unread.drain(..start);
        }
        stream.lock().is_ended = true;
    });
    Ok(())
}

impl Stream {
    fn add_block(&mut self, block: &str, received_at: Timestamp) {
        if block.contains("\nevent: reset\n") {
            self.resets += 1;
            return;
        }
        let Some((_, data)) = block.split_once("\ndata: ") else {
            return;
        };
        self.event_count += 1;
        let time = data.split_once("\"time\":\"");
        let time = time.and_then(|(_, rest)| rest.split_once('"'));
        if let Some(time) = time.and_then(|(time, _)| time.parse::<Timestamp>().ok()) {
            let latency = received_at.duration_since(time);
            self.latencies.push(latency.as_secs_f64() * 1000.0);
        }
    }
}

/// Returns the report, and starts the next one.
fn report(streams: &[(String, Arc<Mutex<Stream>>)]) -> Result<Report> {
    let mut report = Report::default();
    let mut latencies = Vec::new();
    for (org_id, stream) in streams {
        let mut stream = stream.lock();
        ensure!(!stream.is_ended, "a stream of {org_id} has ended");
        let Stream {
            event_count,
            resets,
            latencies: stream_latencies,
            is_ended: _,
        } = std::mem::take(&mut *stream);
        let min_events = report.min_events.entry(org_id.clone());
        let min_events = min_events.or_insert(event_count);
        *min_events = (*min_events).min(event_count);
        report.events += event_count;
        report.resets += resets;
        latencies.extend(stream_latencies);
    }
    report.latency_p50 = quantile(&latencies, 0.5);
    report.latency_p99 = quantile(&latencies, 0.99);
    report.latency_max = quantile(&latencies, 1.0);
    if latencies.is_empty() {
        // JSON has no NaN.
        (report.latency_p50, report.latency_p99, report.latency_max) = (0.0, 0.0, 0.0);
    }
    Ok(report)
}
