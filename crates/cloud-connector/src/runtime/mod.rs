//! Startup and shutdown of the connector.
//!
//! The startup order is: store, recorder, ingest, jobs, API. The module `shutdown_order` contains
//! the shutdown order. Startup reads all configured files and binds all ports before it creates
//! files. Therefore startup creates no files if a setting is wrong.

mod components;
mod data_dir;
pub mod metrics;
mod roles;
mod shutdown_order;
mod start_api;
mod start_ingest;
mod start_recorder;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::FutureExt as _;
use tokio::net::TcpListener;

use crate::config::Config;
use api::{self, Keys, Scope};
use broker::{self, Broker, Listeners};
use delivery::PendingResponses;
use domain::Clock;
use jobs::PeriodicJobs;
use network::tls_server::{self, ServerTls};
use pipeline::record::Recorder;
use service::health::{Component, Health};
use service::metrics::prometheus_handle;
use service::settings::Secret;
use service::shutdown::TaskGroup;
use store::Store;
use store_postgres::PostgresStore;
use store_sqlite::SqliteStore;
use tenant::TenantLookup;

pub use components::{
    account_translator, inventory_reporter, open_store_for_cli, tenant_lookup, tenant_lookup_job,
    topic_scheme,
};
pub use data_dir::{DataDir, LOCAL_CALLER, database_path};
pub use roles::{Role, Roles};

/// Interval at which recorded histogram samples are aggregated. Without aggregation, the samples
/// would use more and more memory.
const METRICS_UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// A running connector. Call [`App::stop`] to stop the connector.
pub struct App {
    /// Addresses, roles and API key of the connector.
    pub info: AppInfo,
    health: Health,
    recorder: Option<Recorder>,
    http_tasks: TaskGroup,
    ingest_tasks: TaskGroup,
    recorder_tasks: TaskGroup,
    background_tasks: TaskGroup,
    /// Tasks of the MQTT connection that publishes messages to clients through an external broker.
    publisher_tasks: TaskGroup,
    store: Arc<dyn Store>,
    broker: Option<Arc<Broker>>,
    grace_period: Duration,
    /// Locks the data folder until the `App` is dropped.
    _data_dir: Option<DataDir>,
}

impl App {
    /// Waits until an essential task has exited. An essential task must run until shutdown, so an
    /// earlier exit is a bug. The caller should then exit the process, so a supervisor can restart
    /// the process.
    pub async fn wait_for_essential_task_exit(&self) {
        match &self.recorder {
            Some(recorder) => recorder.wait_for_writer_exit().await,
            None => std::future::pending().await,
        }
    }

    fn has_role(&self, role: Role) -> bool {
        self.info.roles.contains(role)
    }
}

/// Addresses, roles and API key of a running connector. The startup banner prints this information.
#[derive(Debug, Clone)]
pub struct AppInfo {
    /// The roles of this process.
    pub roles: Roles,
    /// Address of the REST API, probes and metrics.
    pub http_address: SocketAddr,
    /// Whether the REST API uses TLS.
    pub uses_https: bool,
    /// Address of the embedded broker's listener without TLS, if the broker has this listener.
    pub mqtt_address: Option<SocketAddr>,
    /// Address of the embedded broker's listener with TLS, if the broker has this listener.
    pub mqtts_address: Option<SocketAddr>,
    /// Path of the data folder. `None` if the database is PostgreSQL.
    pub data_dir: Option<PathBuf>,
    /// API key of the caller `local`. `None` if there is no data folder, or if `api.local_key` is
    /// false.
    pub local_key: Option<Secret>,
}

/// Listeners and file contents that startup needs. Startup acquires these resources before it
/// creates files.
struct StartupResources {
    tenant_lookup: Arc<dyn TenantLookup>,
    http_listener: TcpListener,
    http_tls: Option<Arc<ServerTls>>,
    metrics_listener: Option<TcpListener>,
    mqtt_listeners: Listeners,
}

/// Starts a connector that has these roles.
///
/// # Errors
/// When startup fails. The error text contains the setting that causes the problem, and the fix.
pub async fn start(config: Config, roles: Roles, clock: Arc<dyn Clock>) -> Result<App> {
    roles.check_config(&config)?;
    let resources = read_files_and_bind_ports(&config).await?;
    let (store, data_dir) = open_store(&config, &roles).await?;
    let mqtt_listeners = resources.mqtt_listeners;
    let mqtts_listener = mqtt_listeners.tls.as_ref().map(|(listener, _)| listener);
    let mut info = AppInfo {
        roles,
        http_address: resources.http_listener.local_addr()?,
        uses_https: resources.http_tls.is_some(),
        mqtt_address: local_addr(mqtt_listeners.plain.as_ref())?,
        mqtts_address: local_addr(mqtts_listener)?,
        data_dir: data_dir.as_ref().map(|data| data.path().to_owned()),
        local_key: None,
    };
    let keys = load_api_keys(&config, data_dir.as_ref(), &mut info)?;
    let mut app = App {
        health: Health::new(),
        recorder: None,
        http_tasks: TaskGroup::new(),
        ingest_tasks: TaskGroup::new(),
        recorder_tasks: TaskGroup::new(),
        background_tasks: TaskGroup::new(),
        publisher_tasks: TaskGroup::new(),
        store,
        broker: None,
        grace_period: config.shutdown.grace_period.get(),
        _data_dir: data_dir,
        info,
    };
    if [Role::Record, Role::Api, Role::Updaters]
        .map(|role| app.has_role(role))
        .contains(&true)
    {
        app.add_store_health_check();
    }
    let topics = topic_scheme(&config);
    let handshake_errors = if app.has_role(Role::Record) {
        Some(app.start_recorder(&config, resources.tenant_lookup.clone(), &clock)?)
    } else {
        None
    };
    let responses = PendingResponses::new(topics.clone());
    app.start_ingest(&config, mqtt_listeners, &topics, &responses, &clock)?;
    app.start_background_tasks(&config, resources.tenant_lookup, &clock)?;
    let router = app.start_api(&config, handshake_errors, topics, responses, keys, &clock)?;
    let http_tasks = app.http_tasks.clone();
    if let Some(listener) = resources.metrics_listener {
        let probes = api::probe_router(app.probe_state(), &config.http);
        http_tasks.spawn(api::serve(listener, None, probes, http_tasks.clone()));
    }
    if let Some(tls) = &resources.http_tls {
        let tasks = &app.background_tasks;
        let reload_interval = config.http.tls.reload_interval.get();
        tasks.spawn(tls_server::reload_on_change(
            tls.clone(),
            reload_interval,
            tasks.clone(),
        ));
    }
    http_tasks.spawn(api::serve(
        resources.http_listener,
        resources.http_tls,
        router,
        http_tasks.clone(),
    ));
    Ok(app)
}

/// Applies pending database migrations. Returns the database's file path, or its host, port and
/// name.
///
/// # Errors
/// When the database cannot be opened or migrated, or another process uses the data folder.
pub async fn migrate(config: &Config) -> Result<String> {
    if config.postgres.host.is_empty() {
        let data_dir = DataDir::open(&config.data.dir)?;
        let store = SqliteStore::open(&data_dir.database_path()).await?;
        store.close().await;
        return Ok(data_dir.database_path().display().to_string());
    }
    let postgres = &config.postgres;
    store_postgres::migrate(postgres).await?;
    Ok(format!(
        "{}:{}/{}",
        postgres.host, postgres.port, postgres.database
    ))
}

async fn read_files_and_bind_ports(config: &Config) -> Result<StartupResources> {
    let tenant_lookup = tenant_lookup(config)?;
    let uses_embedded_broker = config.mqtt.url.is_none();
    let mqtts_address = config.broker.tls.listen.filter(|_| uses_embedded_broker);
    let mqtts = match mqtts_address {
        Some(address) => Some((address, Arc::new(broker::read_tls(&config.broker.tls)?))),
        None => None,
    };
    let http_tls = api::read_tls(&config.http.tls)?.map(Arc::new);
    let http_listener = bind("http.listen", "--http", config.http.listen).await?;
    let metrics_listener = match config.http.metrics_listen {
        Some(address) => Some(bind("http.metrics_listen", "http.metrics_listen", address).await?),
        None => None,
    };
    let plain_listener = match config.broker.listen.filter(|_| uses_embedded_broker) {
        Some(address) => Some(broker::bind("broker.listen", address).await?),
        None => None,
    };
    let tls_listener = match mqtts {
        Some((address, tls)) => Some((broker::bind("broker.tls.listen", address).await?, tls)),
        None => None,
    };
    Ok(StartupResources {
        tenant_lookup,
        http_listener,
        http_tls,
        metrics_listener,
        mqtt_listeners: Listeners {
            plain: plain_listener,
            tls: tls_listener,
        },
    })
}

/// Binds a listener to `address`, which is the value of the setting `setting_name`. The error
/// message recommends `flag_or_setting` for choosing another address.
async fn bind(
    setting_name: &str,
    flag_or_setting: &str,
    address: SocketAddr,
) -> Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| {
        format!(
            "{setting_name}: cannot listen on {address}; stop the process that uses the address, \
             or choose another address with {flag_or_setting}"
        )
    })
}

/// Opens the database. For SQLite, opens the database file, or creates it if it does not exist.
///
/// For PostgreSQL, this function does not connect. The first query connects. Therefore the
/// connector can start while PostgreSQL is unavailable.
async fn open_store(config: &Config, roles: &Roles) -> Result<(Arc<dyn Store>, Option<DataDir>)> {
    if !config.postgres.host.is_empty() {
        let store = if roles.contains(Role::Api) {
            PostgresStore::for_api(&config.postgres)
        } else {
            PostgresStore::new(&config.postgres)
        };
        return Ok((Arc::new(store), None));
    }
    let data_dir = DataDir::open(&config.data.dir)?;
    let store = SqliteStore::open(&data_dir.database_path()).await?;
    Ok((Arc::new(store), Some(data_dir)))
}

/// Returns the configured API keys. If there is a data folder and `api.local_key` is true, also
/// returns the key of the caller `local`, and stores this key in `info.local_key`.
fn load_api_keys(config: &Config, data_dir: Option<&DataDir>, info: &mut AppInfo) -> Result<Keys> {
    let mut keys = Keys::default();
    for (caller, key) in &config.api.keys {
        keys.add(caller, key.secrets().to_vec(), key.scopes().to_vec());
    }
    if let Some(data_dir) = data_dir
        && config.api.local_key
    {
        let key = data_dir.local_key()?;
        let scopes = vec![Scope::Tenant, Scope::Management];
        keys.add(LOCAL_CALLER, vec![key.clone()], scopes);
        info.local_key = Some(key);
    }
    Ok(keys)
}

impl App {
    /// Starts the task that aggregates metrics. If this process has the role `updaters`, also
    /// starts the periodic jobs.
    fn start_background_tasks(
        &self,
        config: &Config,
        tenant_lookup: Arc<dyn TenantLookup>,
        clock: &Arc<dyn Clock>,
    ) -> Result<()> {
        let tasks = &self.background_tasks;
        tasks.spawn(run_metrics_upkeep(tasks.clone()));
        if self.has_role(Role::Updaters) {
            let jobs = PeriodicJobs {
                store: self.store.clone(),
                clock: clock.clone(),
                pause_between_runs: config.updaters.interval.get(),
                disconnected_retention: config.updaters.disconnected_retention.get(),
                dead_letter_retention: config.dead_letters.retention.get(),
                lookup_job_runner: tenant_lookup_job(
                    config,
                    self.store.clone(),
                    tenant_lookup,
                    self.info.data_dir.as_deref(),
                    clock.clone(),
                )?,
            };
            tasks.spawn(jobs.run(tasks.clone()));
        }
        Ok(())
    }

    fn add_store_health_check(&self) {
        let store = self.store.clone();
        self.health.add_check(Component::Store, move || {
            let store = store.clone();
            async move { store.ping().await.map_err(|error| error.to_string()) }.boxed()
        });
    }
}

async fn run_metrics_upkeep(tasks: TaskGroup) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(METRICS_UPKEEP_INTERVAL) => {}
            () = tasks.cancelled() => return,
        }
        prometheus_handle().run_upkeep();
    }
}

fn local_addr(listener: Option<&TcpListener>) -> std::io::Result<Option<SocketAddr>> {
    listener.map(TcpListener::local_addr).transpose()
}
