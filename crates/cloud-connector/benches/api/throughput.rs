//! Measures the requests per second and the p99 latency of the connector and of the baseline server
//! under load.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use super::load::{LoadResult, run_load};
use super::process::ConnectorProcess;
use super::support::report::{Goal, Measurement, median, quantile};
use super::support::{Services, env_vars};
use super::{API_KEY_SECRET, ORG_ID, RUN_COUNT, SERVE_BASELINE_ARG, rows};

/// Number of callers that send requests in parallel.
const CALLER_COUNT: usize = 64;
/// Number of rows in the table `connections`.
const CLIENT_COUNT: usize = 10_000;
/// Duration of one run. Each run sends requests to one server.
const RUN_DURATION: Duration = Duration::from_secs(4);

/// The measured endpoint.
#[derive(Clone, Copy)]
enum Endpoint {
    Status,
    Message,
}

impl Endpoint {
    /// Returns the name of the endpoint. In the connector's API, the name is the last segment of
    /// the path.
    fn name(self) -> &'static str {
        match self {
            Self::Status => "status",
            Self::Message => "message",
        }
    }

    fn expected_status(self) -> &'static str {
        match self {
            Self::Status => "200",
            Self::Message => "201",
        }
    }
}

pub async fn measure_status_endpoint(services: &Services) -> Result<Vec<Measurement>> {
    measure_endpoint(services, Endpoint::Status).await
}

pub async fn measure_message_endpoint(services: &Services) -> Result<Vec<Measurement>> {
    measure_endpoint(services, Endpoint::Message).await
}

async fn measure_endpoint(services: &Services, endpoint: Endpoint) -> Result<Vec<Measurement>> {
    let database = services.create_database().await?;
    rows::insert_connections(services, &database, CLIENT_COUNT).await?;
    services.checkpoint().await?;
    let connector = start_api(services, &database).await?;
    let (mut baseline, baseline_url) = start_baseline(&database).await?;
    let mut connector_runs = RunResults::default();
    let mut baseline_runs = RunResults::default();
    let expected_status = endpoint.expected_status();
    // Run 0 is a warm-up. It opens the database connections and prepares the statements.
    for run in 0..=RUN_COUNT {
        let build_request = move |number| build_connector_request(endpoint, number);
        let connector_result = run_load(
            &connector.http_url,
            CALLER_COUNT,
            RUN_DURATION,
            build_request,
            expected_status,
        )
        .await?;
        let build_request = move |number| build_baseline_request(endpoint, number);
        let baseline_result = run_load(
            &baseline_url,
            CALLER_COUNT,
            RUN_DURATION,
            build_request,
            expected_status,
        )
        .await?;
        if run > 0 {
            connector_runs.add_run(&connector_result);
            baseline_runs.add_run(&baseline_result);
        }
    }
    baseline.kill().await?;
    connector.stop().await?;
    services.drop_database(&database).await?;
    let (rate, p99_ms) = connector_runs.medians();
    let (baseline_rate, baseline_p99_ms) = baseline_runs.medians();
    let endpoint_name = endpoint.name();
    Ok(vec![
        Measurement {
            name: endpoint_name.to_owned(),
            details: format!("{rate:.0} requests/s ÷ {baseline_rate:.0} of the baseline"),
            value: rate / baseline_rate,
            unit: "",
            goal: Goal::AtLeast(0.8),
        },
        Measurement {
            name: format!("{endpoint_name}, p99"),
            details: format!("baseline {baseline_p99_ms:.1} ms"),
            value: p99_ms,
            unit: "ms",
            goal: Goal::None,
        },
    ])
}

/// Results of all runs of one server.
#[derive(Default)]
struct RunResults {
    requests_per_second: Vec<f64>,
    p99_ms: Vec<f64>,
}

impl RunResults {
    fn add_run(&mut self, result: &LoadResult) {
        self.requests_per_second.push(result.requests_per_second);
        self.p99_ms.push(quantile(&result.latencies_ms, 0.99));
    }

    /// Returns two medians: of the requests per second, and of the p99 latency in milliseconds.
    fn medians(&self) -> (f64, f64) {
        (median(&self.requests_per_second), median(&self.p99_ms))
    }
}

/// Starts the connector's role `api` with default settings, and waits until it is ready.
pub async fn start_api(services: &Services, database: &str) -> Result<ConnectorProcess> {
    let mut env = services.postgres_env_vars(database);
    env.extend(env_vars(&[
        (
            "mqtt.url",
            &format!("mqtt://127.0.0.1:{}", services.mosquitto_port),
        ),
        ("mqtt.username", "cloud-connector"),
        ("mqtt.password", "cc-secret"),
        ("http.listen", "127.0.0.1:0"),
        ("api.keys.bench", API_KEY_SECRET),
        // Distributed mode requires this setting. The benchmark does not use Kafka.
        (
            "kafka.brokers",
            &format!("127.0.0.1:{}", services.kafka_port),
        ),
    ]));
    let process = ConnectorProcess::start(&["--role", "api"], &env).await?;
    process.wait_until_ready().await?;
    Ok(process)
}

/// Starts the baseline server in a child process. Returns the process and the server's URL.
async fn start_baseline(database: &str) -> Result<(Child, String)> {
    let mut child = Command::new(std::env::current_exe()?)
        .args([SERVE_BASELINE_ARG, database])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let stdout = child.stdout.take().context("stdout is not piped")?;
    let url = BufReader::new(stdout).lines().next_line().await?;
    Ok((child, url.context("the baseline server did not start")?))
}

/// Returns the body of a message request. The body has about 300 bytes.
fn message_body() -> String {
    let payload = "x".repeat(200);
    format!(r#"{{"directive":"rhc-worker-playbook","metadata":{{"a":"b"}},"payload":"{payload}"}}"#)
}

fn build_connector_request(endpoint: Endpoint, client_number: usize) -> Vec<u8> {
    let client_id = rows::client_id(client_number % CLIENT_COUNT);
    let endpoint_name = endpoint.name();
    let path = format!("/api/cloud-connector/v2/connections/{client_id}/{endpoint_name}");
    encode_request(endpoint, &path)
}

fn build_baseline_request(endpoint: Endpoint, client_number: usize) -> Vec<u8> {
    let client_id = rows::client_id(client_number % CLIENT_COUNT);
    encode_request(endpoint, &format!("/{}/{client_id}", endpoint.name()))
}

/// Encodes a request. Both servers receive the same headers, so that they need the same time to
/// parse the headers.
fn encode_request(endpoint: Endpoint, path: &str) -> Vec<u8> {
    let path_and_headers = format!(
        "{path} HTTP/1.1\r\nhost: localhost\r\nx-rh-cloud-connector-client-id: bench\r\n\
         x-rh-cloud-connector-psk: {API_KEY_SECRET}\r\nx-rh-cloud-connector-org-id: {ORG_ID}\r\n"
    );
    match endpoint {
        Endpoint::Status => format!("GET {path_and_headers}\r\n").into_bytes(),
        Endpoint::Message => {
            let body = message_body();
            format!(
                "POST {path_and_headers}content-type: application/json\r\n\
                 content-length: {}\r\n\r\n{body}",
                body.len()
            )
            .into_bytes()
        }
    }
}
