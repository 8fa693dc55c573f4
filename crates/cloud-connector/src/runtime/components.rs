//! Creates components from the configuration, for the running connector and for CLI commands.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;

use crate::config::Config;
use domain::{Clock, OrgId, Tenant};
use integrations::inventory::reporter::InventoryReporter;
use integrations::inventory::{message, sink};
use jobs::{LookupJobConfig, LookupJobRunner};
use kafka::Producer;
use protocol::{DialectSettings, TopicScheme};
use store::LookupQueueRepository;
use tenant::{AccountTranslator, HttpTranslator, StaticTranslator};
use tenant::{GatewayClient, LookupClient, LookupLimits, StaticTenants, TenantLookup};

const INVENTORY_FILE_NAME: &str = "inventory.ndjson";

/// Creates the tenant lookup. If `tenant.gateway_url` is set, the lookup sends requests to the
/// tenant gateway. Otherwise it uses the static tenant file and the default tenant.
///
/// # Errors
/// When a `tenant.*` setting is invalid.
pub fn tenant_lookup(config: &Config) -> Result<Arc<dyn TenantLookup>> {
    let settings = &config.tenant;
    let Some(url) = &settings.gateway_url else {
        return Ok(Arc::new(StaticTenants::read(settings)?));
    };
    let timeout = settings.gateway_timeout.get();
    let gateway = GatewayClient::new(url, settings.gateway_ca.as_ref(), timeout)?;
    let limits = LookupLimits {
        max_concurrency: settings.gateway_max_concurrency,
        request_timeout: timeout,
        slow_threshold: config.record.tenant_lookup_timeout.get(),
        cache_ttl: settings.cache_ttl.get(),
        negative_cache_ttl: settings.negative_cache_ttl.get(),
        breaker_probe_interval: settings.breaker_probe_interval.get(),
    };
    Ok(Arc::new(LookupClient::new(gateway, limits)))
}

/// Creates the translator between account numbers and organization ids. If `tenant.translator_url`
/// is set, the translator sends requests to the translation service. Otherwise it uses the
/// translation file and the default tenant.
///
/// # Errors
/// When a `tenant.*` setting is invalid.
pub fn account_translator(config: &Config) -> Result<Arc<dyn AccountTranslator>> {
    let settings = &config.tenant;
    if let Some(url) = &settings.translator_url {
        let timeout = settings.translator_timeout.get();
        return Ok(Arc::new(HttpTranslator::new(url, timeout)?));
    }
    let default_org_id = OrgId::new(&settings.default_org_id).ok();
    let default_tenant = default_org_id.map(|org_id| Tenant {
        org_id,
        account: settings.default_account.clone(),
    });
    let translation_file = settings.translator_file.as_deref();
    let translator = StaticTranslator::read(translation_file, default_tenant.as_ref())?;
    Ok(Arc::new(translator))
}

/// Creates the inventory reporter. If Kafka is configured, the reporter writes to the inventory
/// topic. Otherwise it writes to a file in the data folder.
///
/// Returns `None` if there is neither Kafka nor a data folder, or if `inventory.enabled` is false.
///
/// # Errors
/// When a `kafka.*` setting is invalid.
pub fn inventory_reporter(
    config: &Config,
    data_dir: Option<&Path>,
) -> Result<Option<InventoryReporter>> {
    let settings = &config.inventory;
    let sink: Arc<dyn sink::InventorySink> = match (&config.kafka.brokers, data_dir) {
        _ if !settings.enabled => return Ok(None),
        (Some(_), _) => {
            let producer = Producer::new_best_effort(&config.kafka)?;
            Arc::new(sink::KafkaSink::new(producer, settings.topic.clone()))
        }
        (None, Some(dir)) => Arc::new(sink::FileSink::new(
            &dir.join(INVENTORY_FILE_NAME),
            settings.file_max_bytes,
            settings.max_files,
        )),
        (None, None) => return Ok(None),
    };
    Ok(Some(InventoryReporter {
        sink,
        policy: message::ReportPolicy {
            stale_after: settings.stale_after.get(),
            include_handshake_hosts: settings.include_handshake_hosts,
        },
        delivery_timeout: settings.delivery_timeout.get(),
    }))
}

/// Creates the periodic job that looks up tenants.
///
/// # Errors
/// When a `kafka.*` setting is invalid.
pub fn tenant_lookup_job(
    config: &Config,
    lookup_queue: Arc<dyn LookupQueueRepository>,
    tenant_lookup: Arc<dyn TenantLookup>,
    data_dir: Option<&Path>,
    clock: Arc<dyn Clock>,
) -> Result<LookupJobRunner> {
    let stale_after = config.inventory.stale_after.get();
    Ok(LookupJobRunner {
        lookup_queue,
        tenant_lookup,
        inventory: inventory_reporter(config, data_dir)?,
        clock,
        config: LookupJobConfig {
            max_concurrency: config.tenant.gateway_max_concurrency,
            lookup_timeout: config.tenant.gateway_timeout.get(),
            inventory_refresh_after: stale_after
                .saturating_sub(config.updaters.inventory_refresh_margin.get()),
            lookup_retry_interval: config.updaters.tenant_retry_interval.get(),
            max_attempts: config.updaters.tenant_max_attempts,
        },
    })
}

/// Returns the configured MQTT topic scheme: the topic prefixes, and the topic levels of the
/// handshake dialect.
#[must_use]
pub fn topic_scheme(config: &Config) -> TopicScheme {
    let dialect_settings = DialectSettings {
        handshake_topics: config.mqtt.handshake_topics.clone(),
    };
    TopicScheme::new(config.mqtt.prefixes.clone(), &dialect_settings)
}
