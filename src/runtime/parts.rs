//! Parts that the running connector and operators' commands both make from the configuration.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};

use super::database_path;
use crate::config::Config;
use crate::domain::{Clock, OrgId, Tenant};
use crate::kafka::Producer;
use crate::platform::announcer::Announcer;
use crate::platform::{inventory, outlet};
use crate::protocol::{Topics, Words};
use crate::store::Store;
use crate::store::postgres::PostgresStore;
use crate::store::sqlite::{self, SqliteStore};
use crate::tenant::{CarefulTenants, FixedTenants, Gateway, Limits, Tenants};
use crate::tenant::{FixedTranslator, HttpTranslator, Translator};
use crate::updaters::{LookupSettings, LookupUpdater};

const INVENTORY_FILE: &str = "inventory.ndjson";

/// Who knows to whom clients belong: the gateway where there is one, else the file and the default.
///
/// # Errors
/// When the settings cannot work.
pub fn tenants(config: &Config) -> Result<Arc<dyn Tenants>> {
    let settings = &config.tenant;
    let Some(url) = &settings.gateway_url else {
        return Ok(Arc::new(FixedTenants::read(settings)?));
    };
    let timeout = settings.gateway_timeout.get();
    let gateway = Gateway::new(url, settings.gateway_ca.as_ref(), timeout)?;
    let limits = Limits {
        at_once: settings.gateway_at_once,
        timeout,
        slow_after: config.record.tenant_deadline.get(),
        found_for: settings.found_for.get(),
        not_found_for: settings.not_found_for.get(),
        probe_after: settings.probe_after.get(),
    };
    Ok(Arc::new(CarefulTenants::new(gateway, limits)))
}

/// Who knows which account number and which organisation belong together: the translator where there
/// is one, else the file and the default tenant.
///
/// # Errors
/// When the settings cannot work.
pub fn translator(config: &Config) -> Result<Arc<dyn Translator>> {
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
    Ok(Arc::new(FixedTranslator::read(file, default.as_ref())?))
}

/// Who is told of hosts: inventory's topic where there is a queue, a file where there is a data
/// folder, else nobody.
///
/// # Errors
/// When the settings cannot work.
pub fn announcer(config: &Config, data_dir: Option<&Path>) -> Result<Option<Announcer>> {
    let settings = &config.inventory;
    let outlet: Arc<dyn outlet::Outlet> = match (&config.kafka.brokers, data_dir) {
        _ if !settings.enabled => return Ok(None),
        (Some(_), _) => {
            let producer = Producer::for_notices(&config.kafka)?;
            Arc::new(outlet::Topic::new(producer, settings.topic.clone()))
        }
        (None, Some(dir)) => Arc::new(outlet::Lines::new(
            &dir.join(INVENTORY_FILE),
            settings.file_max,
            settings.files_kept,
        )),
        (None, None) => return Ok(None),
    };
    Ok(Some(Announcer {
        outlet,
        terms: inventory::Terms {
            stale_after: settings.stale_after.get(),
            handshake_hosts: settings.handshake_hosts,
        },
        within: settings.deliver_within.get(),
    }))
}

/// The updaters that look tenants up.
///
/// # Errors
/// When the settings cannot work.
pub fn lookup_updater(
    config: &Config,
    store: Arc<dyn Store>,
    tenants: Arc<dyn Tenants>,
    data_dir: Option<&Path>,
    clock: Arc<dyn Clock>,
) -> Result<LookupUpdater> {
    let stale_after = config.inventory.stale_after.get();
    Ok(LookupUpdater {
        store,
        tenants,
        inventory: announcer(config, data_dir)?,
        clock,
        settings: LookupSettings {
            at_once: config.tenant.gateway_at_once,
            within: config.tenant.gateway_timeout.get(),
            stale_after: stale_after.saturating_sub(config.updaters.stale_margin.get()),
            retry_after: config.updaters.tenant_retry_after.get(),
            most_failures: config.updaters.tenant_attempts,
        },
    })
}

/// The topics of the deployment.
#[must_use]
pub fn topics(config: &Config) -> Topics {
    let words = Words {
        to_service: config.mqtt.handshake_in.clone(),
        to_client: config.mqtt.handshake_out.clone(),
        state: config.mqtt.handshake_status.clone(),
    };
    Topics::new(config.mqtt.prefixes.clone(), words)
}

/// Opens the database for an operator's command, beside a connector that may be running. Makes and
/// changes nothing.
///
/// # Errors
/// When there is none, or it is not up to date.
pub async fn open_for_operator(config: &Config) -> Result<Arc<dyn Store>> {
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
