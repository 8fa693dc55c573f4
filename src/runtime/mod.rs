//! Startup and shutdown of the connector.
//!
//! Startup order: store, recorder, ingest, jobs, API. `shutdown_order` has the order of shutdown.
//! Startup reads all configured files and binds all ports before it writes anything, so that a
//! wrong setting leaves no files behind.

mod components;
mod data_dir;
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

use crate::api::{self, Keys};
use crate::broker::{self, Broker, Listeners};
use crate::config::{Config, Scope, Secret};
use crate::delivery::PendingResponses;
use crate::domain::Clock;
use crate::jobs::PeriodicJobs;
use crate::record::Recorder;
use crate::shutdown::TaskGroup;
use crate::store::Store;
use crate::store::postgres::{self, PostgresStore};
use crate::store::sqlite::SqliteStore;
use crate::telemetry::health::{Component, Health};
use crate::telemetry::metrics;
use crate::tenant::TenantLookup;
use crate::tls_server::{self, ServerTls};

pub use components::{
    account_translator, inventory_reporter, open_for_cli, tenant_lookup, tenant_lookup_job,
    topic_scheme,
};
pub use data_dir::{DataDir, LOCAL_CALLER, database_path};
pub use roles::{Role, Roles};

/// How often recorded histogram samples are aggregated. Without this, they accumulate in memory.
const METRICS_UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// A running connector. Stop it with [`App::stop`].
pub struct App {
    /// Addresses, roles and the local key.
    pub info: AppInfo,
    health: Health,
    recorder: Option<Recorder>,
    http_tasks: TaskGroup,
    ingest_tasks: TaskGroup,
    recorder_tasks: TaskGroup,
    background_tasks: TaskGroup,
    /// The connection to the external broker that publishes messages to clients.
    publisher_tasks: TaskGroup,
    store: Arc<dyn Store>,
    broker: Option<Arc<Broker>>,
    grace_period: Duration,
    /// Keeps the data folder locked until the process ends.
    _data_dir: Option<DataDir>,
}

impl App {
    /// Resolves when a task has exited that must run until shutdown. This is a bug; the process
    /// should exit and be restarted.
    pub async fn essential_task_exited(&self) {
        match &self.recorder {
            Some(recorder) => recorder.writer_exited().await,
            None => std::future::pending().await,
        }
    }

    fn has(&self, role: Role) -> bool {
        self.info.roles.has(role)
    }
}

/// Addresses and credentials of a running connector, for the startup banner.
#[derive(Debug, Clone)]
pub struct AppInfo {
    /// The roles of this process.
    pub roles: Roles,
    /// Address of the REST API, probes and metrics.
    pub http: SocketAddr,
    /// Whether `http` uses TLS.
    pub has_https: bool,
    /// Address of the embedded broker without TLS.
    pub mqtt: Option<SocketAddr>,
    /// Address of the embedded broker with TLS.
    pub mqtts: Option<SocketAddr>,
    /// The data folder. `None` with PostgreSQL.
    pub data_dir: Option<PathBuf>,
    /// The key of the caller `local`, if there is one.
    pub local_key: Option<Secret>,
}

/// Everything that was read from files and bound to ports before startup writes anything.
struct Bound {
    tenant_lookup: Arc<dyn TenantLookup>,
    http: TcpListener,
    https: Option<Arc<ServerTls>>,
    metrics: Option<TcpListener>,
    mqtt: Listeners,
}

/// Starts the roles in this process.
///
/// # Errors
/// The first problem, with the setting that causes it and how to fix it.
pub async fn start(config: Config, roles: Roles, clock: Arc<dyn Clock>) -> Result<App> {
    roles.check(&config)?;
    let bound = bind_all(&config).await?;
    let (store, data_dir) = open_store(&config, &roles).await?;
    let mqtts = bound.mqtt.tls.as_ref().map(|(listener, _)| listener);
    let mut info = AppInfo {
        roles,
        http: bound.http.local_addr()?,
        has_https: bound.https.is_some(),
        mqtt: local_addr(bound.mqtt.plain.as_ref())?,
        mqtts: local_addr(mqtts)?,
        data_dir: data_dir.as_ref().map(|data| data.path().to_owned()),
        local_key: None,
    };
    let keys = api_keys(&config, data_dir.as_ref(), &mut info)?;
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
        .map(|role| app.has(role))
        .contains(&true)
    {
        app.add_store_check();
    }
    let topics = topic_scheme(&config);
    let handshake_errors = if app.has(Role::Record) {
        Some(app.start_recorder(&config, bound.tenant_lookup.clone(), &clock)?)
    } else {
        None
    };
    let responses = PendingResponses::new(topics.clone());
    app.start_ingest(&config, bound.mqtt, &topics, &responses, &clock)?;
    app.start_background(&config, bound.tenant_lookup, &clock)?;
    let router = app.start_api(&config, handshake_errors, topics, responses, keys, &clock)?;
    let http_tasks = app.http_tasks.clone();
    if let Some(listener) = bound.metrics {
        let probes = api::probe_router(app.probe_state(), &config.http);
        http_tasks.spawn(api::serve(listener, None, probes, http_tasks.clone()));
    }
    if let Some(tls) = &bound.https {
        let tasks = &app.background_tasks;
        let interval = config.http.tls.reload_interval.get();
        tasks.spawn(tls_server::reload_on_change(
            tls.clone(),
            interval,
            tasks.clone(),
        ));
    }
    http_tasks.spawn(api::serve(
        bound.http,
        bound.https,
        router,
        http_tasks.clone(),
    ));
    Ok(app)
}

/// Applies pending database migrations. Returns the name of the database.
///
/// # Errors
/// When the database cannot be opened or migrated, or another process uses the data folder.
pub async fn migrate(config: &Config) -> Result<String> {
    if config.postgres.host.is_empty() {
        let data_dir = DataDir::open(&config.data.dir)?;
        let store = SqliteStore::open(&data_dir.database()).await?;
        store.close().await;
        return Ok(data_dir.database().display().to_string());
    }
    let postgres = &config.postgres;
    postgres::migrate(postgres).await?;
    Ok(format!(
        "{}:{}/{}",
        postgres.host, postgres.port, postgres.database
    ))
}

async fn bind_all(config: &Config) -> Result<Bound> {
    let tenant_lookup = tenant_lookup(config)?;
    let is_embedded = config.mqtt.url.is_none();
    let tls = match config.broker.tls.listen.filter(|_| is_embedded) {
        Some(address) => Some((address, Arc::new(broker::read_tls(&config.broker.tls)?))),
        None => None,
    };
    let https = api::read_tls(&config.http.tls)?.map(Arc::new);
    let http = bind("http.listen", "--http", config.http.listen).await?;
    let metrics = match config.http.metrics_listen {
        Some(address) => Some(bind("http.metrics_listen", "http.metrics_listen", address).await?),
        None => None,
    };
    let plain = match config.broker.listen.filter(|_| is_embedded) {
        Some(address) => Some(broker::bind("broker.listen", address).await?),
        None => None,
    };
    let tls = match tls {
        Some((address, tls)) => Some((broker::bind("broker.tls.listen", address).await?, tls)),
        None => None,
    };
    Ok(Bound {
        tenant_lookup,
        http,
        https,
        metrics,
        mqtt: Listeners { plain, tls },
    })
}

/// Binds a port. `changed_by` is the flag or setting with which the user can choose another
/// address.
async fn bind(key: &str, changed_by: &str, address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| {
        format!(
            "{key}: cannot listen on {address}; stop the process that uses the address, or choose \
             another address with {changed_by}"
        )
    })
}

/// Opens the database. SQLite must exist or be creatable now. PostgreSQL is connected at the first
/// query, so the connector starts while the server is down.
async fn open_store(config: &Config, roles: &Roles) -> Result<(Arc<dyn Store>, Option<DataDir>)> {
    if !config.postgres.host.is_empty() {
        let store = if roles.has(Role::Api) {
            PostgresStore::for_api(&config.postgres)
        } else {
            PostgresStore::new(&config.postgres)
        };
        return Ok((Arc::new(store), None));
    }
    let data_dir = DataDir::open(&config.data.dir)?;
    let store = SqliteStore::open(&data_dir.database()).await?;
    Ok((Arc::new(store), Some(data_dir)))
}

/// Returns the configured keys, and the local key if there is a data folder to store it in.
fn api_keys(config: &Config, data_dir: Option<&DataDir>, info: &mut AppInfo) -> Result<Keys> {
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
    fn start_background(
        &self,
        config: &Config,
        tenant_lookup: Arc<dyn TenantLookup>,
        clock: &Arc<dyn Clock>,
    ) -> Result<()> {
        let tasks = &self.background_tasks;
        tasks.spawn(run_metrics_upkeep(tasks.clone()));
        if self.has(Role::Updaters) {
            let jobs = PeriodicJobs {
                store: self.store.clone(),
                clock: clock.clone(),
                interval: config.updaters.interval.get(),
                disconnected_retention: config.updaters.disconnected_retention.get(),
                dead_letter_retention: config.dead_letters.retention.get(),
                tenant_lookups: tenant_lookup_job(
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

    fn add_store_check(&self) {
        let store = self.store.clone();
        self.health.add(Component::Store, move || {
            let store = store.clone();
            async move { store.ping().await.map_err(|error| error.to_string()) }.boxed()
        });
    }
}

async fn run_metrics_upkeep(tasks: TaskGroup) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(METRICS_UPKEEP_INTERVAL) => metrics::handle().run_upkeep(),
            () = tasks.cancelled() => return,
        }
    }
}

fn local_addr(listener: Option<&TcpListener>) -> std::io::Result<Option<SocketAddr>> {
    listener.map(TcpListener::local_addr).transpose()
}
