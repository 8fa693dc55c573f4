//! Reports the hosts of a committed batch to inventory and to the sources service. Both reports are
//! only queued, so a writer never waits for these services.

use std::collections::HashMap;

use super::writer::WriterContext;
use domain::{ClientId, Identity, Timestamp};
use integrations::inventory::message::Host;
use integrations::sources::catalog_source;
use store::{PresenceBatch, TenantChange};

/// Queues the reports of the clients that sent an online message in these committed rows and whose
/// tenant was found. `identities` contains the identities of these tenants. `now` is the time of the
/// batch.
///
/// A client that reconnected by a heartbeat is not reported here, because the batch does not
/// contain its facts. The inventory refresh job reports such a client later.
pub(super) fn report_committed_hosts(
    context: &WriterContext,
    rows: &PresenceBatch,
    identities: &HashMap<ClientId, Identity>,
    now: Timestamp,
) {
    for upsert in &rows.upserts {
        let client = &upsert.client_id;
        let (TenantChange::Found(tenant), Some(identity)) =
            (&upsert.tenant, identities.get(client))
        else {
            continue;
        };
        if let Some(registrar) = &context.deps.source_registrar
            && let Some(source) = catalog_source(client, &upsert.dialect, upsert.kind, &upsert.info)
        {
            registrar.try_register(identity, source, client);
        }
        if let Some(report_queue) = &context.report_queue {
            let host = Host {
                client_id: client,
                tenant,
                identity,
                dialect: &upsert.dialect,
                kind: upsert.kind,
                info: &upsert.info,
            };
            report_queue.add(&host, upsert, now);
        }
    }
}
