//! `doctor`: checks the configuration and the dependencies. Prints one line per check. The line of
//! a failed check also contains the fix.

use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use tokio::net::TcpListener;

use super::{ConfigSource, block_on, format_error};
use api;

use crate::config::Config;

use crate::runtime::{DataDir, DataDirError, database_path};
use mqtt::{ConnectOptions, Distribution, ProbeError, SessionKind};

use network::tls_server::check_certificate_file;
use tenant::TranslationOutcome;

/// The broker must accept packets of at least this number of times `http.max_body_bytes`.
const MIN_PACKET_SIZE_FACTOR: usize = 2;

#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    #[command(flatten)]
    config_source: ConfigSource,
}

/// Result of one check. `Ok` contains a description of the healthy component. The text in `Err` has
/// the form `problem; fix`.
type CheckResult = Result<String, String>;

/// The results of all checks, in their order.
#[derive(Default)]
struct Report(Vec<(&'static str, Outcome)>);

enum Outcome {
    Ok(String),
    /// The connector works, but not as well or as safely as it could.
    Warning(String),
    Failure(String),
}

impl Report {
    fn add(&mut self, check_name: &'static str, result: CheckResult) {
        let outcome = match result {
            Ok(text) => Outcome::Ok(text),
            Err(text) => Outcome::Failure(text),
        };
        self.0.push((check_name, outcome));
    }

    fn add_warning(&mut self, check_name: &'static str, text: String) {
        self.0.push((check_name, Outcome::Warning(text)));
    }

    fn has_failure(&self) -> bool {
        let is_failure = |outcome: &Outcome| matches!(outcome, Outcome::Failure(_));
        self.0.iter().any(|(_, outcome)| is_failure(outcome))
    }
}

pub(super) fn run(args: &DoctorArgs) -> Result<ExitCode> {
    let mut report = Report::default();
    match args.config_source.load() {
        Ok(loaded) => {
            service::logs::init(&loaded.config.log)?;
            report.add("configuration", Ok("valid".to_owned()));
            block_on(async {
                run_checks(&loaded.config, &mut report).await;
                Ok(())
            })?;
        }
        Err(error) => report.add("configuration", Err(format_error(&error))),
    }
    for (check_name, outcome) in &report.0 {
        print_check(check_name, outcome);
    }
    Ok(if report.has_failure() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

async fn run_checks(config: &Config, checks: &mut Report) {
    // If a connector is running, it has locked the data folder and listens on the configured
    // addresses. The checks must not report the lock or the used addresses as a problem.
    let mut is_connector_running = false;
    if config.postgres.host.is_empty() {
        let dir = &config.data.dir;
        let (result, is_locked) = check_data_folder(dir);
        is_connector_running = is_locked;
        checks.add("data folder", result);
        checks.add("database", check_sqlite(dir, is_connector_running).await);
    } else {
        checks.add("database", check_postgres(config).await);
        add_postgres_warnings(config, checks).await;
    }
    let http_result = check_listen_address(
        "http.listen",
        Some(config.http.listen),
        is_connector_running,
    )
    .await;
    checks.add("HTTP", http_result);
    if let Some(certificate) = &config.http.tls.certificate {
        checks.add("HTTP TLS", check_http_tls(config, certificate));
    }
    if config.mqtt.url.is_some() {
        checks.add("MQTT broker", check_external_broker(config).await);
        if let Some(group) = &config.mqtt.shared_subscription_group {
            let result = check_shared_subscription(config, group).await;
            checks.add("shared subscription", result);
        }
        if config.kafka.brokers.is_some() {
            checks.add("Kafka", check_kafka(config).await);
        }
    } else {
        let (plain_address, tls_address) = (config.broker.listen, config.broker.tls.listen);
        let plain_result =
            check_listen_address("broker.listen", plain_address, is_connector_running).await;
        checks.add("MQTT broker", plain_result);
        let tls_result =
            check_listen_address("broker.tls.listen", tls_address, is_connector_running).await;
        checks.add("MQTT broker TLS", tls_result);
        checks.add("certificates", check_broker_certificates(config));
        checks.add("open files", check_fd_limit(config));
    }
    checks.add("tenant lookup", check_tenant_lookup(config).await);
    checks.add("account translator", check_translator(config).await);
}

async fn check_postgres(config: &Config) -> CheckResult {
    let settings = &config.postgres;
    let database_address = format!("{}:{}/{}", settings.host, settings.port, settings.database);
    store_postgres::check_connection_and_schema(settings).await?;
    Ok(format!(
        "connected to {database_address}; schema is up to date"
    ))
}

/// Adds one warning for each setting of the server that should be changed.
async fn add_postgres_warnings(config: &Config, checks: &mut Report) {
    // If the server does not respond, the check of the database reports the reason.
    let problems = store_postgres::check_server_settings(&config.postgres).await;
    for problem in problems.unwrap_or_default() {
        checks.add_warning("database settings", problem);
    }
}

async fn check_external_broker(config: &Config) -> CheckResult {
    let url = config.mqtt.url.as_deref().unwrap_or_default();
    // The check has its own client id. With the client id of `ingest`, the broker would disconnect
    // `ingest`.
    let client_id = format!("cloud-connector-doctor-{}", std::process::id());
    let options = ConnectOptions::from_config(&config.mqtt, &client_id, SessionKind::Clean);
    // Nothing else subscribes to this topic: a message from the service to a client that does not exist.
    let prefix = config.mqtt.prefixes.first().map_or("", String::as_str);
    let topic = format!("{prefix}/{client_id}/data/in");
    let payload_bytes = MIN_PACKET_SIZE_FACTOR * config.http.max_body_bytes;
    match mqtt::probe(&options, &topic, payload_bytes).await {
        Ok(()) => Ok(format!(
            "connected to {url}; a message of {payload_bytes} bytes was delivered"
        )),
        Err(ProbeError::Connect(error)) => Err(format!(
            "mqtt.url: cannot connect to {url}: {error}; check the address, mqtt.ca, \
             mqtt.certificate, mqtt.username and mqtt.password"
        )),
        Err(ProbeError::Deliver(error)) => Err(format!(
            "mqtt.url: connected to {url}, but a message of {payload_bytes} bytes (twice \
             http.max_body_bytes) on {topic} was not delivered: {error}; a client that responds to a \
             large message would be disconnected without end; raise the maximum packet size of the \
             broker, then mqtt.max_packet_size, and let Cloud Connector read and write this topic"
        )),
    }
}

/// Checks that the broker delivers all messages of a client to the same member of the group.
async fn check_shared_subscription(config: &Config, group: &str) -> CheckResult {
    let client_id = format!("cloud-connector-doctor-{}", std::process::id());
    let options = ConnectOptions::from_config(&config.mqtt, &client_id, SessionKind::Clean);
    let prefix = config.mqtt.prefixes.first().map_or("", String::as_str);
    let topics = ["data", "control"].map(|level| format!("{prefix}/{client_id}/{level}/in"));
    // A group of its own, so that the check receives no messages of clients, and no process of the real
    // group receives the messages of the check.
    let group_of_check = format!("{group}-doctor-{}", std::process::id());
    match mqtt::probe_shared_subscription(&options, &group_of_check, &topics).await {
        Ok(Distribution::ByClient) => Ok(format!(
            "the broker delivers all messages of a client to the same member of the group {group}"
        )),
        Ok(Distribution::Mixed) => Err(format!(
            "mqtt.shared_subscription_group: the broker delivers the messages of one client to \
             different members of the group {group}, so their order is lost; with EMQX, set \
             mqtt.shared_subscription_strategy = hash_clientid; with other brokers, unset \
             mqtt.shared_subscription_group and use mqtt.ingest_messages"
        )),
        Err(ProbeError::Connect(error) | ProbeError::Deliver(error)) => Err(format!(
            "mqtt.shared_subscription_group: the check was not possible: {error}; let Cloud Connector \
             read and write {}, and check that the broker supports shared subscriptions",
            topics.join(" and ")
        )),
    }
}

async fn check_kafka(config: &Config) -> CheckResult {
    let config = config.clone();
    let probe =
        tokio::task::spawn_blocking(move || kafka::probe(&config.kafka, &config.kafka_topics()));
    probe.await.unwrap_or_else(|error| {
        Err(format!(
            "the check did not complete: {error}; run `doctor` again"
        ))
    })
}

/// Returns the result of the check, and whether a running connector has locked the folder.
fn check_data_folder(dir: &Path) -> (CheckResult, bool) {
    if !dir.exists() {
        return (check_data_folder_creation(dir), false);
    }
    match DataDir::open(dir) {
        Ok(data) => (Ok(format!("{} is writable", data.path().display())), false),
        Err(DataDirError::InUse { .. }) => {
            let text = format!("{} is in use by a running connector", dir.display());
            (Ok(text), true)
        }
        Err(error) => (Err(format_error(&error.into())), false),
    }
}

/// Checks that the data folder can be created. `doctor` must not create the folder itself, so this
/// function creates and removes a temporary folder in the nearest parent folder that exists.
fn check_data_folder_creation(dir: &Path) -> CheckResult {
    let absolute = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    let parent = absolute.ancestors().skip(1).find(|parent| parent.exists());
    let parent = parent.unwrap_or(Path::new("/"));
    let temporary_folder = parent.join(format!(".cloud-connector-doctor-{}", std::process::id()));
    std::fs::create_dir(&temporary_folder)
        .and_then(|()| std::fs::remove_dir(&temporary_folder))
        .map(|()| format!("{} will be created on first start", dir.display()))
        .map_err(|error| {
            format!(
                "data.dir: cannot create {}: {error} in {}; choose another folder with --data-dir",
                dir.display(),
                parent.display()
            )
        })
}

async fn check_sqlite(dir: &Path, is_connector_running: bool) -> CheckResult {
    let path = database_path(dir);
    if !path.exists() {
        return Ok("will be created on first start".to_owned());
    }
    store_sqlite::check_integrity(&path)
        .await
        .map_err(|error| error.to_string())?;
    let is_schema_current = store_sqlite::is_schema_current(&path)
        .await
        .map_err(|error| error.to_string())?;
    if is_schema_current {
        Ok(format!(
            "{} is intact; schema is up to date",
            path.display()
        ))
    } else if is_connector_running {
        Err(
            "the schema is older than this program: the running connector is an older version; \
             restart the connector"
                .to_owned(),
        )
    } else {
        Err(
            "the schema is older than this program; run `cloud-connector migrate`, or start the \
             connector"
                .to_owned(),
        )
    }
}

async fn check_listen_address(
    setting_name: &str,
    address: Option<SocketAddr>,
    is_connector_running: bool,
) -> CheckResult {
    let Some(address) = address else {
        return Ok(format!("disabled: {setting_name} is not set"));
    };
    match TcpListener::bind(address).await {
        Ok(_) => Ok(format!("{address} is available")),
        Err(_) if is_connector_running => {
            Ok(format!("{address} is in use by the running connector"))
        }
        Err(error) => Err(format!(
            "{setting_name}: cannot listen on {address}: {error}; stop the process that uses the \
             address, or choose another address"
        )),
    }
}

fn check_fd_limit(config: &Config) -> CheckResult {
    let limit = rlimit::Resource::NOFILE.get_hard().unwrap_or(u64::MAX);
    let needed = config.broker.max_connections as u64;
    if limit < needed {
        return Err(format!(
            "broker.max_connections: {needed} connections need more open files than the hard limit \
             of {limit}; raise the limit (ulimit -Hn), or lower the setting"
        ));
    }
    Ok(format!("hard limit is {limit}"))
}

async fn check_tenant_lookup(config: &Config) -> CheckResult {
    let lookup = crate::runtime::tenant_lookup(config).map_err(|error| error.to_string())?;
    lookup.check_availability().await
}

async fn check_translator(config: &Config) -> CheckResult {
    let translator =
        crate::runtime::account_translator(config).map_err(|error| error.to_string())?;
    let settings = &config.tenant;
    let Some(url) = &settings.translator_url else {
        return Ok(match &settings.translator_file {
            Some(file) => format!("uses {} and the default tenant", file.display()),
            None => "uses the default tenant only: tenant.translator_url is not set".to_owned(),
        });
    };
    // The check translates account "0", which need not exist. "Not found" is also a valid response.
    match translator.org_of_account("0").await {
        TranslationOutcome::Unavailable => Err(format!(
            "tenant.translator_url: {url} did not send a valid translator response; check the \
             address, or set it to \"\" to disable the translator"
        )),
        TranslationOutcome::Found(_) | TranslationOutcome::NotFound => {
            Ok(format!("{url} responds"))
        }
    }
}

fn check_http_tls(config: &Config, certificate: &Path) -> CheckResult {
    api::read_tls(&config.http.tls).map_err(|error| error.to_string())?;
    check_certificate_file("http.tls.certificate", certificate).map_err(|error| error.to_string())
}

fn check_broker_certificates(config: &Config) -> CheckResult {
    let tls = &config.broker.tls;
    if !tls.is_enabled() {
        return Ok("not needed: broker.tls.listen is not set".to_owned());
    }
    broker::read_tls(tls).map_err(|error| error.to_string())?;
    let path = tls.certificate.as_deref().unwrap_or(Path::new(""));
    check_certificate_file("broker.tls.certificate", path).map_err(|error| error.to_string())
}

fn print_check(check_name: &str, outcome: &Outcome) {
    let (status, color, text) = match outcome {
        Outcome::Ok(text) => ("ok  ", 32, text),
        Outcome::Warning(text) => ("WARN", 33, text),
        Outcome::Failure(text) => ("FAIL", 31, text),
    };
    let status = if std::io::stdout().is_terminal() {
        format!("\x1b[{color}m{status}\x1b[0m")
    } else {
        status.to_owned()
    };
    // Error texts of libraries can contain line breaks. Each line break is replaced by a space.
    let text: Vec<&str> = text.lines().map(str::trim).collect();
    println!("{status}  {check_name:<18}  {}", text.join(" "));
}
