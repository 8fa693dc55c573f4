//! `run`: starts the connector and stops it when asked.

use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use clap::{Args, ValueEnum};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{ConfigSource, block_on};
use crate::config::Config;
use crate::domain::SystemClock;
use crate::runtime::{self, AppInfo, LOCAL_CALLER, Roles};
use crate::telemetry;

#[derive(Debug, Args)]
pub(super) struct RunArgs {
    /// Run this role only; repeat it for several. Without it, all of them
    #[arg(long = "role", value_name = "ROLE")]
    roles: Vec<Role>,
    #[command(flatten)]
    source: ConfigSource,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Role {
    Ingest,
    Record,
    Api,
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
    let config = args.source.load()?.config;
    let named: Vec<runtime::Role> = args.roles.iter().map(|role| (*role).into()).collect();
    let roles = Roles::new(&named);
    roles.check(&config)?;
    telemetry::logs::init(&config.log)?;
    block_on(serve(config, roles))
}

/// Every client is an open file. What the system allows, we take.
fn raise_open_files() {
    let raised = rlimit::increase_nofile_limit(u64::MAX);
    if let Err(error) = raised {
        tracing::warn!(%error, "the open-file limit cannot be raised");
    }
}

async fn serve(config: Config, roles: Roles) -> Result<ExitCode> {
    // From the first moment, so that a signal during the start is not lost. A hangup ends nothing:
    // it is for those who read their certificates again.
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let _hangup = signal(SignalKind::hangup())?;
    raise_open_files();
    telemetry::metrics::handle();
    let organisation = config.tenant.default_org_id.clone();
    let base_path = config.http.base_path.clone();
    let running = tokio::select! {
        running = runtime::start(config, roles, Arc::new(SystemClock)) => running?,
        () = any_signal(&mut interrupt, &mut terminate) => return Ok(ExitCode::SUCCESS),
    };
    say(&startup_banner(&running.info, &base_path, &organisation));

    let mut failed = false;
    tokio::select! {
        () = any_signal(&mut interrupt, &mut terminate) => {}
        () = running.failed() => {
            tracing::error!("a part has ended that should not have; stopping");
            failed = true;
        }
    }
    say("Stopping; once more ends it at once.\n");
    tokio::select! {
        clean = running.stop() => Ok(if clean && !failed { ExitCode::SUCCESS } else { ExitCode::FAILURE }),
        () = any_signal(&mut interrupt, &mut terminate) => {
            // Not a return: that would wait for whatever does not end.
            std::process::exit(130);
        }
    }
}

/// Whoever reads may be gone, as `tee` is after the same Ctrl-C: that must not keep us from draining.
fn say(text: &str) {
    let mut out = std::io::stdout();
    let _ = out.write_all(text.as_bytes());
    let _ = out.flush();
}

async fn any_signal(interrupt: &mut Signal, terminate: &mut Signal) {
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

/// What it listens on, where its data is, and three lines to copy.
fn startup_banner(info: &AppInfo, base_path: &str, organisation: &str) -> String {
    let mut lines = vec![format!(
        "cloud-connector {} is ready.",
        env!("CARGO_PKG_VERSION")
    )];
    let scheme = if info.has_https { "https" } else { "http" };
    let rest = format!("{scheme}://{}{base_path}", info.http);
    lines.push(format!("  role  {}", info.roles.names()));
    if info.roles.has(runtime::Role::Api) {
        lines.push(format!("  REST  {rest}"));
        lines.push(format!("  docs  {rest}/docs"));
    } else {
        lines.push(format!(
            "  HTTP  {scheme}://{}/readiness, /liveness, /metrics",
            info.http
        ));
    }
    if let Some(address) = info.mqtt {
        lines.push(format!("  MQTT  {address} (this machine only, no TLS)"));
    }
    if let Some(address) = info.mqtts {
        lines.push(format!("  MQTT  {address} (TLS, client certificates)"));
    }
    if let Some(data_dir) = &info.data_dir {
        lines.push(format!("  data  {}", data_dir.display()));
    }
    if let (Some(mqtt), Some(key)) = (info.mqtt, &info.local_key) {
        let me = std::env::args().next().unwrap_or_default();
        let organisation = if organisation.is_empty() {
            "ORG"
        } else {
            organisation
        };
        let headers = format!(
            "-H 'x-rh-cloud-connector-client-id: {LOCAL_CALLER}' -H 'x-rh-cloud-connector-psk: {}' -H 'x-rh-cloud-connector-org-id: {organisation}'",
            key.expose()
        );
        lines.push(String::new());
        lines.push(
            "Try it in another terminal: be a client, list connections, send a message.".into(),
        );
        lines.push(format!("  {me} simulate --mqtt {mqtt} --id my-machine"));
        lines.push(format!("  curl -s {headers} {rest}/v2/connections"));
        lines.push(format!(
            "  curl -s {headers} -d '{{\"directive\":\"echo\",\"payload\":\"hello\"}}' {rest}/v2/connections/my-machine/message"
        ));
    }
    lines.push(String::new());
    lines.push("Ctrl-C stops it.".into());
    lines.push(String::new());
    lines.join("\n")
}
