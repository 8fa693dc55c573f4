//! Configuration → store → recorder → sources → API, and the same way back when it stops.
//!
//! Everything that may fail for the user's reasons (files, ports, certificates) is tried before
//! anything is written.

mod components;
mod data_dir;
mod roles;
mod shutdown_order;
mod start_ingest;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::FutureExt as _;
use tokio::net::TcpListener;

use crate::api::{self, Keys, Probes};
use crate::broker::{self, Broker, Listeners};
use crate::config::{Config, Scope, Secret};
use crate::delivery::{
    ClientPublisher, Delivery, EmbeddedPublisher, MqttPublisher, PendingResponses,
    publish_handshake_errors,
};
use crate::domain::Clock;
use crate::integrations::sources::{self as catalog, SourceRegistrar, Sources};
use crate::jobs::PeriodicJobs;
use crate::mqtt::{IncomingMessage, Options, ReconnectingClient, Session};
use crate::protocol::{InboundMessage, TopicScheme};
use crate::record::{self, HandshakeErrorReceiver, HandshakeErrorSender, Recorder};
use crate::shutdown::TaskGroup;
use crate::store::Store;
use crate::store::postgres::{self, PostgresStore};
use crate::store::sqlite::SqliteStore;
use crate::telemetry::{Health, metrics};
use crate::tenant::TenantLookup;
use crate::tls_server::{self, ServerTls};

pub use components::{announcer, lookup_updater, open_for_cli, tenants, topics, translator};
pub use data_dir::{DataDir, LOCAL_CALLER, database_path};
pub use roles::{Role, Roles};

/// What MQTT itself allows, in bytes.
const MQTT_MAX_PACKET: usize = 256 * 1024 * 1024;
const METRICS_UPKEEP: Duration = Duration::from_secs(5);
/// PostgreSQL takes batches side by side, and two nearly double the throughput; SQLite has one
/// writer, and a second would only wait for it.
const POSTGRES_WRITERS: usize = 2;

/// A connector that runs. Ends with [`App::stop`].
pub struct App {
    /// Where it listens, and what it made.
    pub info: AppInfo,
    health: Health,
    recorder: Option<Recorder>,
    http: TaskGroup,
    sources: TaskGroup,
    recording: TaskGroup,
    background: TaskGroup,
    /// The connection that messages to clients go through.
    outlet: TaskGroup,
    store: Arc<dyn Store>,
    broker: Option<Arc<Broker>>,
    grace: Duration,
    /// Held until the end: one process a data folder.
    _data_dir: Option<DataDir>,
}

impl App {
    /// Resolves when a part has ended that should run: a bug of ours, and a reason to start anew.
    pub async fn failed(&self) {
        match &self.recorder {
            Some(recorder) => recorder.ended().await,
            None => std::future::pending().await,
        }
    }
}

/// Where a running connector can be reached.
#[derive(Debug, Clone)]
pub struct AppInfo {
    /// What it does.
    pub roles: Roles,
    /// REST, probes, metrics.
    pub http: SocketAddr,
    /// Whether that is HTTPS.
    pub has_https: bool,
    /// MQTT without TLS.
    pub mqtt: Option<SocketAddr>,
    /// MQTT with TLS.
    pub mqtts: Option<SocketAddr>,
    /// The data folder, where it is used.
    pub data_dir: Option<PathBuf>,
    /// The key of the caller `local`, if it has one.
    pub local_key: Option<Secret>,
}

/// What was read and bound before anything was written.
struct Bound {
    tenants: Arc<dyn TenantLookup>,
    http: TcpListener,
    https: Option<Arc<ServerTls>>,
    metrics: Option<TcpListener>,
    listeners: Listeners,
}

/// Starts these roles in this process.
///
/// # Errors
/// The first thing that stands in the way, naming its key and the cure.
pub async fn start(config: Config, roles: Roles, clock: Arc<dyn Clock>) -> Result<App> {
    roles.check(&config)?;
    let prepared = prepare(&config).await?;
    let (store, data_dir) = open_store(&config, &roles).await?;
    let mut info = AppInfo {
        roles,
        http: prepared.http.local_addr()?,
        has_https: prepared.https.is_some(),
        mqtt: local_addr(prepared.listeners.plain.as_ref())?,
        mqtts: local_addr(
            prepared
                .listeners
                .tls
                .as_ref()
                .map(|(listener, _)| listener),
        )?,
        data_dir: data_dir.as_ref().map(|data| data.path().to_owned()),
        local_key: None,
    };
    let keys = keys(&config, data_dir.as_ref(), &mut info)?;
    let mut running = App {
        health: Health::new(),
        recorder: None,
        http: TaskGroup::new(),
        sources: TaskGroup::new(),
        recording: TaskGroup::new(),
        background: TaskGroup::new(),
        outlet: TaskGroup::new(),
        store,
        broker: None,
        grace: config.shutdown.grace_period.get(),
        _data_dir: data_dir,
        info,
    };
    if [Role::Record, Role::Api, Role::Updaters]
        .map(|role| running.has(role))
        .contains(&true)
    {
        running.watch_store();
    }
    let topics = topics(&config);
    let tenants = prepared.tenants.clone();
    let refused = if running.has(Role::Record) {
        Some(running.start_recorder(&config, prepared.tenants, &clock)?)
    } else {
        None
    };
    let answers = PendingResponses::new(topics.clone());
    running.start_sources(&config, prepared.listeners, &topics, &answers, &clock)?;
    running.start_background(&config, tenants, &clock)?;
    let router = running.start_api(&config, refused, topics, answers, keys, &clock)?;
    let http = running.http.clone();
    if let Some(listener) = prepared.metrics {
        let probes = api::probes(running.probes(), &config.http);
        http.spawn(api::serve(listener, None, probes, http.clone()));
    }
    if let Some(tls) = &prepared.https {
        let reload = config.http.tls.reload_interval.get();
        let watch = tls_server::keep_current(tls.clone(), reload, running.background.clone());
        running.background.spawn(watch);
    }
    http.spawn(api::serve(
        prepared.http,
        prepared.https,
        router,
        http.clone(),
    ));
    Ok(running)
}

/// Brings the database up to date, and does nothing else. Says what it worked on.
///
/// # Errors
/// When it cannot be opened, or another process has the data folder.
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

async fn prepare(config: &Config) -> Result<Bound> {
    let tenants = tenants(config)?;
    let is_embedded = config.mqtt.url.is_none();
    let tls = match config.broker.tls.listen.filter(|_| is_embedded) {
        Some(address) => Some((address, Arc::new(broker::read_tls(&config.broker.tls)?))),
        None => None,
    };
    let https = api::read_tls(&config.http.tls)?.map(Arc::new);
    let http = bind("http.listen", "--http", config.http.listen).await?;
    let metrics = match config.http.metrics_listen {
        Some(address) => Some(bind("http.metrics_listen", "the configuration", address).await?),
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
        tenants,
        http,
        https,
        metrics,
        listeners: Listeners { plain, tls },
    })
}

async fn bind(key: &str, by: &str, address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| {
        format!(
            "{key}: cannot listen on {address}; stop what listens there, or choose another address with {by}"
        )
    })
}

/// PostgreSQL is connected to when it is first asked something: away at the start is waited for.
async fn open_store(config: &Config, roles: &Roles) -> Result<(Arc<dyn Store>, Option<DataDir>)> {
    if !config.postgres.host.is_empty() {
        let store = if roles.has(Role::Api) {
            PostgresStore::for_callers(&config.postgres)
        } else {
            PostgresStore::new(&config.postgres)
        };
        return Ok((Arc::new(store), None));
    }
    let data_dir = DataDir::open(&config.data.dir)?;
    let store = SqliteStore::open(&data_dir.database()).await?;
    Ok((Arc::new(store), Some(data_dir)))
}

/// Configured keys, and the local one where there is a data folder to keep it in.
fn keys(config: &Config, data_dir: Option<&DataDir>, info: &mut AppInfo) -> Result<Keys> {
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
    fn has(&self, role: Role) -> bool {
        self.info.roles.has(role)
    }

    fn start_recorder(
        &mut self,
        config: &Config,
        tenants: Arc<dyn TenantLookup>,
        clock: &Arc<dyn Clock>,
    ) -> Result<HandshakeErrorReceiver> {
        let (refusals, refused) = HandshakeErrorSender::channel();
        let announcer = announcer(config, self.info.data_dir.as_deref())?;
        let settings = &config.sources;
        let registrar = match &settings.url {
            Some(url) => {
                let service = Sources::new(url, settings.timeout.get())?;
                let (registrar, orders) = SourceRegistrar::channel();
                let stopper = self.background.clone();
                self.background
                    .spawn(catalog::run(orders, service, stopper));
                Some(registrar)
            }
            None => None,
        };
        let is_sqlite = config.postgres.host.is_empty();
        let parts = record::RecorderDeps {
            store: self.store.clone(),
            tenants: tenants.clone(),
            inventory: announcer,
            losses: record::MassLossDetector::new(config.tenant.allow_mass_loss),
            sources: registrar,
            refusals,
            clock: clock.clone(),
            settings: record::RecorderConfig {
                max_batch_size: config.record.max_batch_size,
                tenant_lookup_timeout: config.record.tenant_lookup_timeout.get(),
                stale_online_window: config.record.stale_online_window.get(),
                writers: if is_sqlite { 1 } else { POSTGRES_WRITERS },
                letters: record::DeadLetterLimits {
                    max_per_client: config.dead_letters.max_per_client,
                    max_total: config.dead_letters.max_total,
                },
            },
        };
        self.health
            .add_note("tenant_lookup", move || tenants.note());
        let recorder = Recorder::start(parts, &self.recording);
        let watched = recorder.clone();
        self.health.add("record", move || {
            let standing = watched.standing();
            async move { standing }.boxed()
        });
        self.recorder = Some(recorder);
        Ok(refused)
    }

    fn start_background(
        &self,
        config: &Config,
        tenants: Arc<dyn TenantLookup>,
        clock: &Arc<dyn Clock>,
    ) -> Result<()> {
        self.background.spawn(keep_metrics(self.background.clone()));
        if self.has(Role::Updaters) {
            let updaters = PeriodicJobs {
                store: self.store.clone(),
                clock: clock.clone(),
                interval: config.updaters.interval.get(),
                disconnected_retention: config.updaters.disconnected_retention.get(),
                dead_letters_kept: config.dead_letters.retention.get(),
                lookups: lookup_updater(
                    config,
                    self.store.clone(),
                    tenants,
                    self.info.data_dir.as_deref(),
                    clock.clone(),
                )?,
            };
            self.background.spawn(updaters.run(self.background.clone()));
        }
        Ok(())
    }

    /// Starts what publishes to clients, and makes the HTTP interface: the whole of it for `api`,
    /// probes and metrics for the others.
    fn start_api(
        &self,
        config: &Config,
        refused: Option<HandshakeErrorReceiver>,
        topics: TopicScheme,
        answers: PendingResponses,
        keys: Keys,
        clock: &Arc<dyn Clock>,
    ) -> Result<api::Router> {
        let has_api = self.has(Role::Api);
        if !has_api && refused.is_none() {
            return Ok(api::probes(self.probes(), &config.http));
        }
        let outlet = self.outlet(config, &answers, clock)?;
        if let Some(refused) = refused {
            self.background.spawn(publish_handshake_errors(
                refused,
                outlet.clone(),
                topics.clone(),
                clock.clone(),
                self.background.clone(),
            ));
        }
        if !has_api {
            return Ok(api::probes(self.probes(), &config.http));
        }
        let parts = api::ApiState::new(
            self.store.clone(),
            Delivery::new(outlet, answers, topics, clock.clone()),
            clock.clone(),
            keys,
            translator(config)?,
            &config.api,
        );
        Ok(api::router(parts, self.probes(), &config.http))
    }

    fn outlet(
        &self,
        config: &Config,
        answers: &PendingResponses,
        clock: &Arc<dyn Clock>,
    ) -> Result<Arc<dyn ClientPublisher>> {
        let within = config.mqtt.publish_timeout.get();
        if let Some(broker) = &self.broker {
            return Ok(Arc::new(EmbeddedPublisher::new(broker.clone(), within)));
        }
        let id = format!("cloud-connector-out-{}", uuid::Uuid::new_v4().simple());
        let mut options = Options::from_config(&config.mqtt, &id, Session::Clean);
        // A client's answer must not end the connection that everybody's messages go out on, however
        // large the broker lets it be.
        options.max_packet_size = MQTT_MAX_PACKET;
        let (answers, clock) = (answers.clone(), clock.clone());
        let on_heard = Arc::new(move |heard: IncomingMessage| {
            answers.hear(&InboundMessage {
                topic: heard.topic,
                payload: heard.payload,
                replayed: heard.retain,
                again: false,
                received: clock.now(),
                cut: None,
            });
        });
        let connection = ReconnectingClient::start(options, on_heard, &self.outlet)?;
        // Recording goes on without it: a refusal that is not told costs nobody anything.
        if self.has(Role::Api) {
            let watched = connection.clone();
            self.health.add("mqtt_api", move || {
                let standing = watched.standing();
                async move { standing }.boxed()
            });
        }
        Ok(Arc::new(MqttPublisher::new(connection, within)))
    }

    fn probes(&self) -> Probes {
        Probes {
            health: self.health.clone(),
            render_metrics: || metrics::handle().render(),
        }
    }

    fn watch_store(&self) {
        let store = self.store.clone();
        self.health.add("store", move || {
            let store = store.clone();
            async move { store.ping().await.map_err(|error| error.to_string()) }.boxed()
        });
    }
}

async fn keep_metrics(stopper: TaskGroup) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(METRICS_UPKEEP) => metrics::handle().run_upkeep(),
            () = stopper.asked() => return,
        }
    }
}

fn local_addr(listener: Option<&TcpListener>) -> std::io::Result<Option<SocketAddr>> {
    listener.map(TcpListener::local_addr).transpose()
}
