//! `doctor`: checks what the connector needs. One line a part: what is wrong, and the cure.

use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use tokio::net::TcpListener;

use super::{ConfigSource, block_on, one_line};
use crate::api;
use crate::broker;
use crate::config::Config;
use crate::kafka;
use crate::mqtt::{self, Options, Session};
use crate::runtime::{DataDir, database_path};
use crate::store::{postgres, sqlite};
use crate::telemetry;
use crate::tenant::TranslationOutcome;
use crate::tls_server::check_certificate;

#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    #[command(flatten)]
    source: ConfigSource,
}

/// What a check found: all well (and what it saw), or what is wrong (and the cure).
type Finding = Result<String, String>;

pub(super) fn run(args: &DoctorArgs) -> Result<ExitCode> {
    let config = match args.source.load() {
        Ok(loaded) => loaded.config,
        Err(error) => {
            print("configuration", &Err(one_line(&error)));
            return Ok(ExitCode::FAILURE);
        }
    };
    telemetry::logs::init(&config.log)?;
    let mut findings = vec![("configuration", Ok("read and checked".to_owned()))];
    block_on(async {
        findings.extend(run_checks(&config).await);
        Ok(())
    })?;
    for (part, finding) in &findings {
        print(part, finding);
    }
    let well = findings.iter().all(|(_, finding)| finding.is_ok());
    Ok(if well {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

async fn run_checks(config: &Config) -> Vec<(&'static str, Finding)> {
    let mut findings = Vec::new();
    let mut is_running = false;
    if config.postgres.host.is_empty() {
        let dir = &config.data.dir;
        // A connector that runs has the folder, its database and its ports; then it speaks for
        // them.
        let (folder, runs) = data_folder(dir);
        is_running = runs;
        findings.push(("data folder", folder));
        findings.push(("database", database(dir, is_running).await));
    } else {
        findings.push(("database", postgres(config).await));
    }
    let http = port("http.listen", Some(config.http.listen), is_running).await;
    findings.push(("REST", http));
    if let Some(certificate) = &config.http.tls.certificate {
        findings.push(("REST (TLS)", https(config, certificate)));
    }
    if config.mqtt.url.is_some() {
        findings.push(("broker", outside_broker(config).await));
        if config.kafka.brokers.is_some() {
            findings.push(("queue", queue(config).await));
        }
    } else {
        let (plain, tls) = (config.broker.listen, config.broker.tls.listen);
        findings.push(("broker", port("broker.listen", plain, is_running).await));
        findings.push((
            "broker (TLS)",
            port("broker.tls.listen", tls, is_running).await,
        ));
        findings.push(("certificates", certificates(config)));
        findings.push(("open files", open_files(config)));
    }
    findings.push(("tenant lookup", tenants(config).await));
    findings.push(("translator", translator(config).await));
    findings
}

async fn postgres(config: &Config) -> Finding {
    let settings = &config.postgres;
    let target = format!("{}:{}/{}", settings.host, settings.port, settings.database);
    postgres::probe(settings).await?;
    Ok(format!("{target} is there and up to date"))
}

async fn outside_broker(config: &Config) -> Finding {
    let url = config.mqtt.url.as_deref().unwrap_or_default();
    // An id of its own: the one of `ingest` would throw it out.
    let id = format!("cloud-connector-doctor-{}", std::process::id());
    let options = Options::from_config(&config.mqtt, &id, Session::Clean);
    mqtt::probe(&options).await.map_err(|problem| {
        format!("mqtt.url: {url} does not let us in: {problem}; check the address, mqtt.ca, mqtt.certificate, mqtt.username and mqtt.password")
    })?;
    Ok(format!("{url} lets us in"))
}

async fn queue(config: &Config) -> Finding {
    let config = config.clone();
    let asked = tokio::task::spawn_blocking(move || kafka::probe(&config.kafka, &config.topics()));
    asked.await.unwrap_or_else(|_| Err("not asked".to_owned()))
}

fn data_folder(dir: &Path) -> (Finding, bool) {
    if !dir.exists() {
        return (can_be_created(dir), false);
    }
    match DataDir::open(dir) {
        Ok(data) => (
            Ok(format!("{} can be written to", data.path().display())),
            false,
        ),
        Err(error) => {
            let text = one_line(&error);
            if text.contains("in use by another") {
                (
                    Ok(format!(
                        "{} is in use: a connector runs here",
                        dir.display()
                    )),
                    true,
                )
            } else {
                (Err(text), false)
            }
        }
    }
}

/// Looking must not make it: that is the first start's business. Whether it could be made is tried
/// beside it.
fn can_be_created(dir: &Path) -> Finding {
    let absolute = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    let parent = absolute.ancestors().skip(1).find(|parent| parent.exists());
    let parent = parent.unwrap_or(Path::new("/"));
    let trial = parent.join(format!(".cloud-connector-doctor-{}", std::process::id()));
    std::fs::create_dir(&trial)
        .and_then(|()| std::fs::remove_dir(&trial))
        .map(|()| format!("{} will be made at the first start", dir.display()))
        .map_err(|error| {
            format!(
                "data.dir: {} cannot be made: {error} in {}; choose another with --data-dir",
                dir.display(),
                parent.display()
            )
        })
}

async fn database(dir: &Path, is_running: bool) -> Finding {
    let path = database_path(dir);
    if !path.exists() {
        return Ok("will be made at the first start".to_owned());
    }
    sqlite::check(&path)
        .await
        .map_err(|error| error.to_string())?;
    let current = sqlite::schema_is_current(&path)
        .await
        .map_err(|error| error.to_string())?;
    if current {
        Ok(format!("{} is whole and up to date", path.display()))
    } else if is_running {
        Err("its schema is older than this program: the connector that runs is another version; restart it".to_owned())
    } else {
        Err(
            "its schema is older than this program; run `cloud-connector migrate`, or just start"
                .to_owned(),
        )
    }
}

async fn port(key: &str, address: Option<SocketAddr>, is_running: bool) -> Finding {
    let Some(address) = address else {
        return Ok("off".to_owned());
    };
    match TcpListener::bind(address).await {
        Ok(_) => Ok(format!("{address} is free")),
        Err(_) if is_running => Ok(format!("{address} is taken, as it should be while it runs")),
        Err(error) => Err(format!(
            "{key}: cannot listen on {address}: {error}; stop what listens there, or choose another address"
        )),
    }
}

fn open_files(config: &Config) -> Finding {
    let hard = rlimit::Resource::NOFILE.get_hard().unwrap_or(u64::MAX);
    let wanted = config.broker.max_connections as u64;
    if hard < wanted {
        return Err(format!(
            "broker.max_connections: {wanted} clients, but only {hard} files may be open; raise the limit (ulimit -Hn), or lower the setting"
        ));
    }
    Ok(format!("{hard} may be open"))
}

async fn tenants(config: &Config) -> Finding {
    let tenants = crate::runtime::tenants(config).map_err(|error| error.to_string())?;
    tenants.probe().await
}

async fn translator(config: &Config) -> Finding {
    let translator = crate::runtime::translator(config).map_err(|error| error.to_string())?;
    let settings = &config.tenant;
    let Some(url) = &settings.translator_url else {
        return Ok(match &settings.translator_file {
            Some(file) => format!("from {} and the default tenant", file.display()),
            None => "the default tenant only: tenant.translator_url is off".to_owned(),
        });
    };
    // Whether there is such an account does not matter; that it is an answer does.
    match translator.org_of("0").await {
        TranslationOutcome::Unavailable => Err(format!(
            "tenant.translator_url: {url} does not answer as a translator does; check the address, or set it to \"\" to do without"
        )),
        TranslationOutcome::Found(_) | TranslationOutcome::NotFound => Ok(format!("{url} answers")),
    }
}

fn https(config: &Config, certificate: &Path) -> Finding {
    api::read_tls(&config.http.tls).map_err(|error| error.to_string())?;
    check_certificate("http.tls.certificate", certificate).map_err(|error| error.to_string())
}

fn certificates(config: &Config) -> Finding {
    let tls = &config.broker.tls;
    if tls.listen.is_none() {
        return Ok("none needed: broker.tls.listen is off".to_owned());
    }
    broker::read_tls(tls).map_err(|error| error.to_string())?;
    let path = tls.certificate.as_deref().unwrap_or(Path::new(""));
    check_certificate("broker.tls.certificate", path).map_err(|error| error.to_string())
}

fn print(part: &str, finding: &Finding) {
    let colour = std::io::stdout().is_terminal();
    let (mark, text) = match finding {
        Ok(text) => (
            if colour {
                "\x1b[32mok\x1b[0m  "
            } else {
                "ok  "
            },
            text,
        ),
        Err(text) => (
            if colour {
                "\x1b[31mFAIL\x1b[0m"
            } else {
                "FAIL"
            },
            text,
        ),
    };
    println!("{mark}  {part:<14} {text}");
}
