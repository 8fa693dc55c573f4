//! `run`: starts the connector, and shuts it down on SIGINT or SIGTERM.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use clap::{Args, ValueEnum};
use futures::FutureExt as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

use super::{ConfigSource, block_on};
use crate::config::Config;
use crate::runtime::{self, AppInfo, LOCAL_CALLER, Roles};
use domain::SystemClock;
use service::settings::ExposeSecret as _;

#[derive(Debug, Args)]
pub(super) struct RunArgs {
    /// Run only this role; can be repeated [default: all roles]
    #[arg(long = "role", value_name = "ROLE")]
    roles: Vec<Role>,
    #[command(flatten)]
    config_source: ConfigSource,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Role {
    /// Receive MQTT messages and produce them to Kafka
    Ingest,
    /// Consume messages from Kafka and write them to the database
    Record,
    /// Serve the REST API and publish messages to clients
    Api,
    /// Run periodic jobs
    Updaters,
}

impl From<Role> for runtime::Role {
    fn from(role: Role) -> Self {
        match role {
            Role::Ingest => Self::Ingest,
            Role::Record => Self::Record,
            Role::Api => Self::Api,
            Role::Updaters => Self::Updaters,
        }
    }
}

pub(super) fn run(args: &RunArgs) -> Result<ExitCode> {
    let config = args.config_source.load()?.config;
    let roles: Vec<runtime::Role> = args.roles.iter().map(|role| (*role).into()).collect();
    let roles = Roles::new(&roles);
    roles.check_config(&config)?;
    service::logs::init(&config.log)?;
    service::logs::log_panics();
    block_on(serve(config, roles))
}

/// Raises the soft open-file limit to the hard limit, because each client connection uses one file
/// descriptor.
fn raise_fd_limit() {
    if let Err(error) = rlimit::increase_nofile_limit(u64::MAX) {
        tracing::warn!(%error, "failed to raise the open-file limit");
    }
}

async fn serve(config: Config, roles: Roles) -> Result<ExitCode> {
    // By default, SIGINT, SIGTERM and SIGHUP end the process, so the handlers are installed before
    // startup. This SIGHUP handler does nothing. The TLS listeners have their own SIGHUP handler,
    // which reloads the certificates.
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let _hangup = signal(SignalKind::hangup())?;
    raise_fd_limit();
    service::metrics::prometheus_handle();
    runtime::metrics::describe_all();
    let org_id = config.tenant.default_org_id.clone();
    let base_path = config.http.base_path.clone();
    let app = tokio::select! {
        app = runtime::start(config, roles, Arc::new(SystemClock)) => app?,
        () = wait_for_any_signal(&mut interrupt, &mut terminate) => return Ok(ExitCode::SUCCESS),
    };
    service::logs::print(&startup_banner(&app.info, &base_path, &org_id));

    let (shutdown_sender, shutdown_signal) = oneshot::channel();
    let wait_for_two_signals = async {
        wait_for_any_signal(&mut interrupt, &mut terminate).await;
        service::logs::print("Shutting down. Press Ctrl-C again to quit now.\n");
        // `send` fails if the shutdown has already begun because of a failed task.
        let _ = shutdown_sender.send(());
        wait_for_any_signal(&mut interrupt, &mut terminate).await;
    };
    // `shutdown_sender` is not dropped before it has sent the signal, so the result is always `Ok`.
    let shutdown_signal = shutdown_signal.map(drop);
    tokio::select! {
        outcome = runtime::run_until(app, shutdown_signal) => Ok(outcome.exit_code()),
        // `exit` ends the process at once. `return` would wait for tasks that may never end.
        () = wait_for_two_signals => {
            service::logs::flush();
            std::process::exit(130)
        }
    }
}

async fn wait_for_any_signal(interrupt: &mut Signal, terminate: &mut Signal) {
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

/// Returns the text that is printed after startup: the addresses, the data folder and, with the
/// embedded broker, three example commands.
fn startup_banner(info: &AppInfo, base_path: &str, org_id: &str) -> String {
    let mut lines = vec![format!(
        "cloud-connector {} is ready.",
        env!("CARGO_PKG_VERSION")
    )];
    let scheme = if info.uses_https { "https" } else { "http" };
    let rest_url = format!("{scheme}://{}{base_path}", info.http_address);
    lines.push(format!("  role  {}", info.roles.names()));
    if info.roles.contains(runtime::Role::Api) {
        lines.push(format!("  REST  {rest_url}"));
        lines.push(format!("  docs  {rest_url}/docs"));
    } else {
        lines.push(format!(
            "  HTTP  {scheme}://{}/readiness, /liveness, /metrics",
            info.http_address
        ));
    }
    if let Some(address) = info.mqtt_address {
        lines.push(format!("  MQTT  {address} (this machine only, no TLS)"));
    }
    if let Some(address) = info.mqtts_address {
        lines.push(format!("  MQTT  {address} (TLS, client certificates)"));
    }
    if let Some(address) = info.ws_address {
        lines.push(format!(
            "  MQTT  ws://{address} (this machine only, no TLS)"
        ));
    }
    if let Some(address) = info.wss_address {
        lines.push(format!(
            "  MQTT  wss://{address} (TLS, client certificates)"
        ));
    }
    if let Some(data_dir) = &info.data_dir {
        lines.push(format!("  data  {}", data_dir.display()));
    }
    if let (Some(mqtt), Some(key)) = (info.mqtt_address, &info.local_key) {
        let program = std::env::args().next().unwrap_or_default();
        let org_id = if org_id.is_empty() { "ORG" } else { org_id };
        let headers = format!(
            "-H 'x-rh-cloud-connector-client-id: {LOCAL_CALLER}' \
             -H 'x-rh-cloud-connector-psk: {}' -H 'x-rh-cloud-connector-org-id: {org_id}'",
            key.expose_secret()
        );
        lines.push(String::new());
        lines.push(
            "Try in another terminal: simulate a client, list connections, send a message.".into(),
        );
        lines.push(format!(
            "  {program} simulate --mqtt {mqtt} --id my-machine"
        ));
        lines.push(format!("  curl -s {headers} {rest_url}/v2/connections"));
        lines.push(format!(
            "  curl -s {headers} -d '{{\"directive\":\"echo\",\"payload\":\"hello\"}}' \
             {rest_url}/v2/connections/my-machine/message"
        ));
    }
    lines.push(String::new());
    lines.push("Ctrl-C stops the connector.".into());
    lines.push(String::new());
    lines.join("\n")
}
