//! Configuration → store → recorder → broker → API, and the same way back when it stops.
//!
//! Everything that may fail for the user's reasons (files, ports, certificates) is tried before
//! anything is written.

mod data_dir;
mod stop;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::FutureExt as _;
use tokio::net::TcpListener;

use crate::api::{self, Keys};
use crate::broker::{self, Broker, Listeners, ServerTls, Taken};
use crate::config::{Config, Secret};
use crate::deliver::{Delivery, EmbeddedOutlet};
use crate::domain::Clock;
use crate::ingest::embedded::EmbeddedIntake;
use crate::protocol::Topics;
use crate::record::{self, Recorder};
use crate::shutdown::Stopper;
use crate::store::Store;
use crate::store::sqlite::SqliteStore;
use crate::telemetry::{Health, metrics};
use crate::tenant::FixedTenants;

pub use data_dir::{DataDir, LOCAL_CALLER, database_path};

const METRICS_UPKEEP: Duration = Duration::from_secs(5);

/// A connector that runs. Ends with [`Running::stop`].
pub struct Running {
    /// Where it listens, and what it made.
    pub info: Info,
    health: Health,
    recorder: Recorder,
    http: Stopper,
    recording: Stopper,
    background: Stopper,
    store: Arc<dyn Store>,
    broker: Arc<Broker>,
    grace: Duration,
    /// Held until the end: one process a data folder.
    _data_dir: DataDir,
}

impl Running {
    /// Resolves when a part has ended that should run: a bug of ours, and a reason to start anew.
    pub async fn failed(&self) {
        self.recorder.ended().await;
    }
}

/// Where a running connector can be reached.
#[derive(Debug, Clone)]
pub struct Info {
    /// REST.
    pub http: SocketAddr,
    /// MQTT without TLS.
    pub mqtt: Option<SocketAddr>,
    /// MQTT with TLS.
    pub mqtts: Option<SocketAddr>,
    /// The data folder.
    pub data_dir: PathBuf,
    /// The key of the caller `local`, if it has one.
    pub local_key: Option<Secret>,
}

/// What was read and bound before anything was written.
struct Prepared {
    tenants: FixedTenants,
    http: TcpListener,
    listeners: Listeners,
}

/// Starts everything in this process.
///
/// # Errors
/// The first thing that stands in the way, naming its key and the cure.
pub async fn start(config: Config, clock: Arc<dyn Clock>) -> Result<Running> {
    let prepared = prepare(&config).await?;
    let data_dir = DataDir::open(&config.data.dir)?;
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&data_dir.database()).await?);
    let mut keys = Keys::default();
    for (caller, key) in &config.api.keys {
        keys.add(caller, key.secrets().to_vec());
    }
    let mut info = Info {
        http: prepared.http.local_addr()?,
        mqtt: local_addr(prepared.listeners.plain.as_ref())?,
        mqtts: local_addr(
            prepared
                .listeners
                .tls
                .as_ref()
                .map(|(listener, _)| listener),
        )?,
        data_dir: data_dir.path().to_owned(),
        local_key: None,
    };
    if config.api.local_key {
        let key = data_dir.local_key()?;
        keys.add(LOCAL_CALLER, vec![key.clone()]);
        info.local_key = Some(key);
    }

    let health = Health::new();
    let topics = Topics::new(config.mqtt.prefixes.clone());
    let recording = Stopper::new();
    let recorder = start_recorder(
        &config,
        &store,
        prepared.tenants,
        &topics,
        &clock,
        &recording,
    );
    let intake = EmbeddedIntake::new(recorder.clone(), topics.clone());
    let broker = Arc::new(Broker::start(
        config.broker.clone(),
        topics,
        prepared.listeners,
        Arc::new(intake),
        clock.clone(),
    ));
    watch_health(&health, &store, &recorder, &broker);

    let background = Stopper::new();
    let linked = broker.clone();
    background.spawn(record::end_those_who_stay_away(
        store.clone(),
        config.broker.return_grace.get(),
        move |client| linked.end_if_absent(client).map(Taken::durable),
        background.clone(),
    ));
    background.spawn(keep_metrics(background.clone()));

    let outlet = EmbeddedOutlet::new(broker.clone(), config.mqtt.publish_timeout.get());
    let router = api::router(
        api::Parts {
            store: store.clone(),
            delivery: Delivery::new(store.clone(), Arc::new(outlet), clock),
            keys,
            health: health.clone(),
            render_metrics: Box::new(|| metrics::handle().render()),
        },
        &config.http,
    );
    let http = Stopper::new();
    http.spawn(api::serve(prepared.http, router, http.clone()));

    Ok(Running {
        info,
        health,
        recorder,
        http,
        recording,
        background,
        store,
        broker,
        grace: config.shutdown.grace.get(),
        _data_dir: data_dir,
    })
}

/// Brings the database up to date, and does nothing else.
///
/// # Errors
/// When it cannot be opened, or another process has the data folder.
pub async fn migrate(config: &Config) -> Result<PathBuf> {
    let data_dir = DataDir::open(&config.data.dir)?;
    let store = SqliteStore::open(&data_dir.database()).await?;
    store.close().await;
    Ok(data_dir.database())
}

async fn prepare(config: &Config) -> Result<Prepared> {
    let tenants = FixedTenants::read(&config.tenant)?;
    let tls = match config.broker.tls.listen {
        Some(address) => Some((address, Arc::new(ServerTls::read(&config.broker.tls)?))),
        None => None,
    };
    let http = TcpListener::bind(config.http.listen).await.with_context(|| {
        format!(
            "http.listen: cannot listen on {}; stop what listens there, or choose another address with --http",
            config.http.listen
        )
    })?;
    let plain = match config.broker.listen {
        Some(address) => Some(broker::bind("broker.listen", address).await?),
        None => None,
    };
    let tls = match tls {
        Some((address, tls)) => Some((broker::bind("broker.tls.listen", address).await?, tls)),
        None => None,
    };
    Ok(Prepared {
        tenants,
        http,
        listeners: Listeners { plain, tls },
    })
}

fn start_recorder(
    config: &Config,
    store: &Arc<dyn Store>,
    tenants: FixedTenants,
    topics: &Topics,
    clock: &Arc<dyn Clock>,
    stopper: &Stopper,
) -> Recorder {
    let parts = record::Parts {
        store: store.clone(),
        tenants: Arc::new(tenants),
        topics: topics.clone(),
        clock: clock.clone(),
        settings: record::Settings {
            batch_max: config.record.batch_max,
            tenant_deadline: config.record.tenant_deadline.get(),
            old_within: config.record.old_within.get(),
            // SQLite has one writer; a second would only wait for it.
            writers: 1,
        },
    };
    Recorder::start(parts, stopper)
}

fn watch_health(
    health: &Health,
    store: &Arc<dyn Store>,
    recorder: &Recorder,
    broker: &Arc<Broker>,
) {
    let (store, recorder, broker) = (store.clone(), recorder.clone(), broker.clone());
    health.add("store", move || {
        let store = store.clone();
        async move { store.ping().await.map_err(|error| error.to_string()) }.boxed()
    });
    health.add("record", move || {
        let standing = recorder.standing();
        async move { standing }.boxed()
    });
    health.add("broker", move || {
        let standing = broker.standing();
        async move { standing }.boxed()
    });
}

async fn keep_metrics(stopper: Stopper) {
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
