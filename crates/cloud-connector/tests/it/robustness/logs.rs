//! A log reader that does not read.

use std::io::{BufRead as _, BufReader, PipeReader, Write as _};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use tempfile::TempDir;
use tokio::process::Child;
use tokio::time::timeout;

use test_support::connector::{DEFAULT_ORG_ID, send_signal, sum_metric};
use test_support::mqtt::{Connect, control_out_topic, online_message};
use test_support::services::free_port;
use test_support::{CONDITION_TIMEOUT, RawClient, connector_command, eventually};

/// Default capacity of a pipe on Linux, in bytes.
const PIPE_CAPACITY: usize = 65_536;
/// Maximum duration of an exit. It includes the time limit for writing the remaining log lines.
const EXIT_TIMEOUT: Duration = Duration::from_secs(15);
/// A request without a response for this long counts as unanswered.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// A connector whose standard output and standard error are one pipe, as in a container. The pipe
/// is full from the start, and no process reads it.
struct StalledConnector {
    child: Child,
    log_reader: PipeReader,
    data_dir: TempDir,
    http_url: String,
    mqtt_address: String,
    http_client: reqwest::Client,
}

impl StalledConnector {
    /// Starts the process without waiting until it is ready.
    fn start(http_address: &str) -> Self {
        let (log_reader, mut log_writer) = std::io::pipe().unwrap();
        let mut first_line = vec![b'x'; PIPE_CAPACITY - 1];
        first_line.push(b'\n');
        log_writer.write_all(&first_line).unwrap();
        let data_dir = tempfile::tempdir().unwrap();
        let mqtt_address = format!("127.0.0.1:{}", free_port());
        let child = connector_command()
            .args(["run", "--http", http_address, "--mqtt", &mqtt_address])
            .arg("--data-dir")
            .arg(data_dir.path())
            .stdout(Stdio::from(log_writer.try_clone().unwrap()))
            .stderr(Stdio::from(log_writer))
            .spawn()
            .unwrap();
        Self {
            child,
            log_reader,
            data_dir,
            http_url: format!("http://{http_address}"),
            mqtt_address,
            http_client: test_support::http_client(),
        }
    }

    async fn start_and_wait_until_ready() -> Self {
        let connector = Self::start(&format!("127.0.0.1:{}", free_port()));
        let is_ready = eventually("readiness with a full log pipe", || async {
            (connector.get("/readiness").await?.0 == 200).then_some(true)
        });
        assert!(is_ready.await);
        connector
    }

    /// Sends a GET request. Returns the status and the body, or `None` if there is no response.
    async fn get(&self, path: &str) -> Option<(u16, String)> {
        let key = std::fs::read_to_string(self.data_dir.path().join("local.key"));
        let request = self
            .http_client
            .get(format!("{}{path}", self.http_url))
            .header("x-rh-cloud-connector-client-id", "local")
            .header("x-rh-cloud-connector-psk", key.unwrap_or_default().trim())
            .header("x-rh-cloud-connector-org-id", DEFAULT_ORG_ID)
            .timeout(RESPONSE_TIMEOUT);
        let response = request.send().await.ok()?;
        let status = response.status().as_u16();
        Some((status, response.text().await.ok()?))
    }

    async fn dropped_lines(&self) -> f64 {
        let (_, metrics) = self.get("/metrics").await.expect("a response of /metrics");
        sum_metric(&metrics, "cloud_connector_log_lines_dropped_total", "")
    }

    /// Sends requests until the log of these requests is much larger than the pipe and the queue.
    /// The access log contains the first part of the path of each request.
    async fn write_many_log_lines(&self) {
        let path = format!("/api/cloud-connector/v2/{}", "long-path-".repeat(25));
        let responses = futures::stream::iter(0..5000)
            .map(|_| self.get(&path))
            .buffer_unordered(8);
        let unanswered = responses
            .filter(|response| std::future::ready(response.is_none()))
            .take(1)
            .count()
            .await;
        assert_eq!(
            unanswered, 0,
            "the connector did not answer while no process read its log"
        );
    }

    /// Sends SIGTERM, and waits for the exit.
    async fn terminate(&mut self) -> ExitStatus {
        send_signal(i32::try_from(self.child.id().unwrap()).unwrap(), "TERM");
        self.wait_for_exit().await
    }

    async fn wait_for_exit(&mut self) -> ExitStatus {
        let exit = timeout(EXIT_TIMEOUT, self.child.wait()).await;
        exit.expect("the connector did not exit while no process read its log")
            .unwrap()
    }

    /// Reads the log in another thread, from now until the end of the process.
    fn read_log(&self) -> std::sync::mpsc::Receiver<String> {
        let (sender, lines) = std::sync::mpsc::channel();
        let log_reader = self.log_reader.try_clone().unwrap();
        std::thread::spawn(move || {
            for line in BufReader::new(log_reader).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        lines
    }
}

#[tokio::test]
async fn a_connector_records_while_its_log_is_not_read_and_then_logs_how_many_lines_were_dropped() {
    let connector = StalledConnector::start_and_wait_until_ready().await;
    connector.write_many_log_lines().await;
    let connect = Connect::new("logged").offline_will();
    let mut client = RawClient::connect(&connector.mqtt_address, &connect).await;
    client
        .must_publish(&control_out_topic("logged"), &online_message())
        .await;
    eventually("the client to be listed", || async {
        let (_, body) = connector.get("/api/cloud-connector/v2/connections").await?;
        body.contains("\"logged\"").then_some(())
    })
    .await;
    let dropped_lines = connector.dropped_lines().await;
    assert!(dropped_lines > 100.0, "{dropped_lines} lines dropped");

    let deadline = Instant::now() + CONDITION_TIMEOUT;
    let lines = connector.read_log();
    let mut log_lines = 0;
    loop {
        let remaining = deadline.saturating_duration_since(Instant::now());
        let line = lines
            .recv_timeout(remaining)
            .expect("a log line that reports the dropped lines");
        let Ok(line) = serde_json::from_str::<serde_json::Value>(&line) else {
            continue;
        };
        log_lines += 1;
        let message = line["message"].as_str().unwrap_or_default();
        if let Some(count) = message.strip_suffix(" log lines were dropped") {
            let count: f64 = count.parse().unwrap();
            assert!(count >= dropped_lines, "{count} of {dropped_lines}");
            break;
        }
    }
    assert!(log_lines > 100, "only {log_lines} lines were kept");
}

#[tokio::test]
async fn sigterm_ends_a_connector_whose_log_is_not_read() {
    let mut connector = StalledConnector::start_and_wait_until_ready().await;
    connector.write_many_log_lines().await;
    assert!(connector.terminate().await.success());
}

#[tokio::test]
async fn a_startup_error_ends_a_connector_whose_log_is_not_read() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let used_address = listener.local_addr().unwrap().to_string();
    let mut connector = StalledConnector::start(&used_address);
    assert_eq!(connector.wait_for_exit().await.code(), Some(1));
}

#[tokio::test]
async fn the_last_lines_of_a_process_are_written_before_it_exits() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let used_address = listener.local_addr().unwrap().to_string();
    let mut connector = StalledConnector::start(&used_address);
    // The reader starts to read only now. It takes the first line out of the full pipe.
    let mut reader = BufReader::new(connector.log_reader.try_clone().unwrap());
    let mut first_line = String::new();
    reader.read_line(&mut first_line).unwrap();
    assert_eq!(connector.wait_for_exit().await.code(), Some(1));
    let rest: Vec<String> = reader.lines().map_while(Result::ok).collect();
    let last_line = rest.last().expect("an error message");
    assert!(
        last_line.starts_with("cloud-connector: ") && last_line.contains(&used_address),
        "{rest:?}"
    );
}
