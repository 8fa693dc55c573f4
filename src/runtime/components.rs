//! Parts that the running connector and operators' commands both make from the configuration.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};

use super::database_path;
use crate::config::Config;
use crate::domain::{Clock, OrgId, Tenant};
use crate::integrations::inventory::reporter::InventoryReporter;
use crate::integrations::inventory::{message, sink};
use crate::jobs::{LookupSettings, TenantLookupJob};
use crate::kafka::Producer;
use crate::protocol::{HandshakeSegments, TopicScheme};
use crate::store::Store;
use crate::store::postgres::PostgresStore;
use crate::store::sqlite::{self, SqliteStore};
use crate::tenant::{AccountTranslator, HttpTranslator, StaticTranslator};
use crate::tenant::{Gateway, LookupClient, LookupLimits, StaticTenants, TenantLookup};

const INVENTORY_FILE: &str = "inventory.ndjson";

/// Who knows to whom clients belong: the gateway where there is one, else the file and the default.
///
/// # Errors
/// When the settings cannot work.
pub fn tenants(config: &Config) -> Result<Arc<dyn TenantLookup>> {
    let settings = &config.tenant;
    let Some(url) = &settings.gateway_url else {
        return Ok(Arc::new(StaticTenants::read(settings)?));
    };
    let timeout = settings.gateway_timeout.get();
    let gateway = Gateway::new(url, settings.gateway_ca.as_ref(), timeout)?;
    let limits = LookupLimits {
        at_once: settings.gateway_max_concurrency,
        timeout,
        slow_after: config.record.tenant_lookup_timeout.get(),
        cache_ttl: settings.cache_ttl.get(),
        negative_cache_ttl: settings.negative_cache_ttl.get(),
        breaker_probe_interval: settings.breaker_probe_interval.get(),
    };
    Ok(Arc::new(LookupClient::new(gateway, limits)))
}

/// Who knows which account number and which organisation belong together: the translator where there
/// is one, else the file and the default tenant.
///
/// # Errors
/// When the settings cannot work.
pub fn translator(config: &Config) -> Result<Arc<dyn AccountTranslator>> {
    let settings = &config.tenant;
    if let Some(url) = &settings.translator_url {
        let timeout = settings.translator_timeout.get();
        return Ok(Arc::new(HttpTranslator::new(url, timeout)?));
    }
    let default = OrgId::new(&settings.default_org_id).ok();
    let default = default.map(|org_id| Tenant {
        org_id,
        account: settings.default_account.clone(),
    });
    let file = settings.translator_file.as_deref();
    Ok(Arc::new(StaticTranslator::read(file, default.as_ref())?))
}

/// Who is told of hosts: inventory's topic where there is a queue, a file where there is a data
/// folder, else nobody.
///
/// # Errors
/// When the settings cannot work.
pub fn announcer(config: &Config, data_dir: Option<&Path>) -> Result<Option<InventoryReporter>> {
    let settings = &config.inventory;
    let outlet: Arc<dyn sink::InventorySink> = match (&config.kafka.brokers, data_dir) {
        _ if !settings.enabled => return Ok(None),
        (Some(_), _) => {
            let producer = Producer::best_effort(&config.kafka)?;
            Arc::new(sink::KafkaSink::new(producer, settings.topic.clone()))
        }
        (None, Some(dir)) => Arc::new(sink::FileSink::new(
            &dir.join(INVENTORY_FILE),
            settings.file_max_bytes,
            settings.max_files,
        )),
        (None, None) => return Ok(None),
    };
    Ok(Some(InventoryReporter {
        outlet,
        terms: message::ReportPolicy {
            stale_after: settings.stale_after.get(),
            include_handshake_hosts: settings.include_handshake_hosts,
        },
        within: settings.delivery_timeout.get(),
    }))
}

/// The updaters that look tenants up.
///
/// # Errors
/// When the settings cannot work.
pub fn lookup_updater(
    config: &Config,
    store: Arc<dyn Store>,
    tenants: Arc<dyn TenantLookup>,
    data_dir: Option<&Path>,
    clock: Arc<dyn Clock>,
) -> Result<TenantLookupJob> {
    let stale_after = config.inventory.stale_after.get();
    Ok(TenantLookupJob {
        store,
        tenants,
        inventory: announcer(config, data_dir)?,
        clock,
        settings: LookupSettings {
            at_once: config.tenant.gateway_max_concurrency,
            within: config.tenant.gateway_timeout.get(),
            stale_after: stale_after.saturating_sub(config.updaters.inventory_refresh_margin.get()),
            retry_after: config.updaters.tenant_retry_interval.get(),
            max_attempts: config.updaters.tenant_max_attempts,
        },
    })
}

/// The topics of the deployment.
#[must_use]
pub fn topics(config: &Config) -> TopicScheme {
    let words = HandshakeSegments {
        to_service: config.mqtt.handshake_topics.inbound.clone(),
        to_client: config.mqtt.handshake_topics.outbound.clone(),
        state: config.mqtt.handshake_topics.status.clone(),
    };
    TopicScheme::new(config.mqtt.prefixes.clone(), words)
}

/// Opens the database for an operator's command, beside a connector that may be running. Makes and
/// changes nothing.
///
/// # Errors
/// When there is none, or it is not up to date.
pub async fn open_for_cli(config: &Config) -> Result<Arc<dyn Store>> {
    if !config.postgres.host.is_empty() {
        let store = PostgresStore::new(&config.postgres);
        store.ping().await.context(
            "postgres: cannot be asked; check its settings, or run `cloud-connector doctor`",
        )?;
        return Ok(Arc::new(store));
    }
    let file = database_path(&config.data.dir);
    if !file.exists() {
        bail!(
            "data.dir: there is no database in {}; name the connector's data folder with --data-dir",
            config.data.dir.display()
        );
    }
    if !sqlite::schema_is_current(&file).await? {
        bail!(
            "the database {} is of an older version; start the connector, or run `cloud-connector migrate`",
            file.display()
        );
    }
    Ok(Arc::new(SqliteStore::open(&file).await?))
}
