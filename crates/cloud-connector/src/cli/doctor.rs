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
use mqtt::{ConnectOptions, ProbeError, SessionKind};

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

pub(super) fn run(args: &DoctorArgs) -> Result<ExitCode> {
    let config = match args.config_source.load() {
        Ok(loaded) => loaded.config,
        Err(error) => {
            print_check("configuration", &Err(format_error(&error)));
            return Ok(ExitCode::FAILURE);
        }
    };
    service::logs::init(&config.log)?;
    let mut checks = vec![("configuration", Ok("valid".to_owned()))];
    block_on(async {
        checks.extend(run_checks(&config).await);
        Ok(())
    })?;
    for (name, result) in &checks {
        print_check(name, result);
    }
    let is_healthy = checks.iter().all(|(_, result)| result.is_ok());
    Ok(if is_healthy {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

async fn run_checks(config: &Config) -> Vec<(&'static str, CheckResult)> {
    let mut checks = Vec::new();
    // If a connector is running, it has locked the data folder and listens on the configured
    // addresses. The checks must not report the lock or the used addresses as a problem.
    let mut is_connector_running = false;
    if config.postgres.host.is_empty() {
        let dir = &config.data.dir;
        let (result, is_locked) = check_data_folder(dir);
        is_connector_running = is_locked;
        checks.push(("data folder", result));
        checks.push(("database", check_sqlite(dir, is_connector_running).await));
    } else {
        checks.push(("database", check_postgres(config).await));
    }
    let http_result = check_listen_address(
        "http.listen",
        Some(config.http.listen),
        is_connector_running,
    )
    .await;
    checks.push(("HTTP", http_result));
    if let Some(certificate) = &config.http.tls.certificate {
        checks.push(("HTTP TLS", check_http_tls(config, certificate)));
    }
    if config.mqtt.url.is_some() {
        checks.push(("MQTT broker", check_external_broker(config).await));
        if config.kafka.brokers.is_some() {
            checks.push(("Kafka", check_kafka(config).await));
        }
    } else {
        let (plain_address, tls_address) = (config.broker.listen, config.broker.tls.listen);
        let plain_result =
            check_listen_address("broker.listen", plain_address, is_connector_running).await;
        checks.push(("MQTT broker", plain_result));
        let tls_result =
            check_listen_address("broker.tls.listen", tls_address, is_connector_running).await;
        checks.push(("MQTT broker TLS", tls_result));
        checks.push(("certificates", check_broker_certificates(config)));
        checks.push(("open files", check_fd_limit(config)));
    }
    checks.push(("tenant lookup", check_tenant_lookup(config).await));
    checks.push(("account translator", check_translator(config).await));
    checks
}

async fn check_postgres(config: &Config) -> CheckResult {
    let settings = &config.postgres;
    let database_address = format!("{}:{}/{}", settings.host, settings.port, settings.database);
    store_postgres::check_connection_and_schema(settings).await?;
    Ok(format!(
        "connected to {database_address}; schema is up to date"
    ))
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

fn print_check(check_name: &str, result: &CheckResult) {
    let uses_color = std::io::stdout().is_terminal();
    let (status, text) = match result {
        Ok(text) if uses_color => ("\x1b[32mok\x1b[0m  ", text),
        Ok(text) => ("ok  ", text),
        Err(text) if uses_color => ("\x1b[31mFAIL\x1b[0m", text),
        Err(text) => ("FAIL", text),
    };
    // Error texts of libraries can contain line breaks. Each line break is replaced by a space.
    let text: Vec<&str> = text.lines().map(str::trim).collect();
    println!("{status}  {check_name:<18}  {}", text.join(" "));
}
