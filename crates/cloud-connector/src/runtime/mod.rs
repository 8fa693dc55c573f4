//! Startup, supervision and shutdown of the connector.
//!
//! Startup has three steps:
//!
//! 1. `startup_resources` reads all configured files and binds all ports. `database` then opens the
//!    database. Therefore startup creates no files if a setting is wrong.
//! 2. `composition` builds the components that the process needs for its roles. One module per
//!    concern contains the components: `recording`, `embedded_broker`, `mqtt_ingest`,
//!    `kafka_readers`, `dead_letter_replay`, `publishing`, `background` and `http`.
//! 3. `tasks` runs the components as tasks of the supervisor.
//!
//! `run` waits for the shutdown signal or for the failure of an essential task. `shutdown_order`
//! contains the shutdown stages and their order.

mod api_keys;
mod app;
mod background;
mod build_context;
mod components;
mod composition;
mod data_dir;
mod database;
mod dead_letter_replay;
mod embedded_broker;
mod event_sequencer;
mod file_check;
mod http;
mod kafka_readers;
mod live_status;
mod liveness_sweep;
mod local_address;
pub mod metrics;
mod mqtt_ingest;
mod publishing;
mod recording;
mod roles;
mod run;
mod search_index;
mod shutdown_order;
mod startup_resources;
mod tasks;

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;

use crate::config::Config;
use delivery::PendingResponses;
use domain::Clock;
use service::{ByteBudget, Health, Supervisor};

pub use app::{App, AppInfo};
pub use components::{
    account_translator, inventory_reporter, tenant_lookup, tenant_lookup_job, topic_scheme,
};
pub use data_dir::{DataDir, DataDirError, LOCAL_CALLER, database_path, local_key_path};
pub use database::{migrate, open_store_for_cli};
pub use liveness_sweep::{LivenessSweepParts, connect_sweep, has_liveness_sweep, liveness_sweep};
pub use local_address::LocalAddress;
pub use roles::{Role, Roles};
pub use run::{RunOutcome, run_until};

use api_keys::load_api_keys;
use build_context::{BuildContext, MESSAGE_BUDGET_BYTES};
use composition::Components;
use database::Database;
use shutdown_order::Stages;
use startup_resources::StartupResources;

/// Starts a connector that has these roles.
///
/// # Errors
/// When startup fails. The error text contains the setting that causes the problem, and the fix.
pub async fn start(config: Config, roles: Roles, clock: Arc<dyn Clock>) -> Result<App> {
    roles.check_config(&config)?;
    let StartupResources {
        tenant_lookup,
        listeners,
    } = StartupResources::acquire(&config).await?;
    let database = Database::open(&config, &roles).await?;
    let api_keys = load_api_keys(&config, database.data_dir.as_ref())?;
    let addresses = listeners.addresses()?;
    let info = AppInfo {
        http_address: addresses.http,
        uses_https: listeners.http.main_tls.is_some(),
        metrics_address: addresses.metrics,
        mqtt_address: addresses.mqtt,
        mqtts_address: addresses.mqtts,
        ws_address: addresses.ws,
        wss_address: addresses.wss,
        data_dir: database.data_dir_path(),
        local_key: api_keys.local_key,
        roles,
    };
    let supervisor = Supervisor::new();
    let health = Health::new(&supervisor);
    let stages = Stages::new(&supervisor);
    let topics = topic_scheme(&config);
    let context = BuildContext {
        config: &config,
        roles: &info.roles,
        clock,
        responses: PendingResponses::new(topics.clone()),
        topics,
        repositories: &database.repositories,
        data_dir: info.data_dir.as_deref(),
        tenant_lookup,
        message_budget: ByteBudget::new(MESSAGE_BUDGET_BYTES),
        stages: &stages,
    };
    let components = Components::build(&context, listeners, api_keys.keys, &health)?;
    if info.roles.use_database() {
        database.add_health_check(&health);
    }
    components.add_health_checks(&health);
    let broker = components.broker();
    tasks::spawn_all(components, &stages);
    if let Some(file_check) = database.file_check() {
        tasks::spawn_file_check(file_check, &stages);
    }
    if let Some(data_dir) = &info.data_dir {
        publish_local_address(&config, &info, data_dir);
    }
    Ok(App {
        info,
        supervisor,
        health,
        stages,
        database,
        broker,
        grace_period: config.shutdown.grace_period.get(),
    })
}

/// Writes the address of the REST API to the data folder, for commands on the same machine. A
/// failure is logged, because the connector works without the file.
fn publish_local_address(config: &Config, info: &AppInfo, data_dir: &Path) {
    let base_path = &config.http.base_path;
    let org_id = &config.tenant.default_org_id;
    let Some(address) = LocalAddress::of_this_process(info, base_path, org_id) else {
        return;
    };
    if let Err(error) = address.write(data_dir) {
        tracing::warn!(
            %error,
            "cannot write the address of the REST API to the data folder; commands on this machine \
             need --url"
        );
    }
}
