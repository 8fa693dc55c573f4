//! Changes of a connection's tenant by a job, with their history and events.

use const_format::concatcp;

use domain::{ClientId, ClientInfo, OfflineReason, OnlineCause, OrgId, Tenant, Timestamp};
use store::sql::{ColumnReader as _, Query, SqlTransaction as _};
use store::{
    HistoryRow, NewEvent, Result, Transition, event_data, latest_transition, log_transitions,
};

use crate::driver::Row;
use crate::transaction::SqliteTransaction;

store::statements! {
    FIND_CONNECTION = concatcp!(
        "SELECT org_id, account, coalesce(connected_since, online_received_at) AS connected_since, ",
        latest_transition!("c."),
        " AS transition_count, canonical_facts, dispatchers, tags, client_version
           FROM connections AS c WHERE client_id = $1"
    );

    /// Parameters: client, number of the latest transition, time.
    COUNT_TRANSITIONS =
        "UPDATE connections SET transition_count = $2, connected_since = $3,
                reconnects = 0
          WHERE client_id = $1";
}

/// Runs the statement `save`, which can change the tenant of a client. If the organization changes, writes the
/// transitions. Returns the number of rows that `save` has changed.
pub(crate) async fn save(
    transaction: &mut SqliteTransaction,
    client: &ClientId,
    save: Query<'_>,
    now: Timestamp,
    writes_events: bool,
) -> Result<u64> {
    let before = find(transaction, client).await?;
    let changed_rows = transaction.execute(save).await?;
    let after = find(transaction, client).await?;
    let (Some(before), Some(after)) = (before, after) else {
        return Ok(changed_rows);
    };
    let (lost, gained) = (org_of(&before)?, org_of(&after)?);
    if lost.as_ref().map(|tenant| &tenant.org_id) == gained.as_ref().map(|tenant| &tenant.org_id) {
        return Ok(changed_rows);
    }
    let info = client_info(&after)?;
    let mut number = after.count("transition_count")?;
    let mut history = Vec::new();
    let mut events = Vec::new();
    let mut add = |tenant: Tenant, transition, event_type, data| {
        number += 1;
        history.push(HistoryRow {
            client_id: client.clone(),
            number,
            at: now,
            tenant: Some(tenant.clone()),
            transition,
        });
        events.push(NewEvent {
            client_id: client.clone(),
            tenant,
            at: now,
            event_type,
            data,
            dispatchers_changed: false,
        });
    };
    if let Some(tenant) = lost {
        let reason = if gained.is_some() {
            OfflineReason::Moved
        } else {
            OfflineReason::TenantLost
        };
        let connected_for = now.duration_since(before.timestamp("connected_since")?);
        let data = event_data::offline(reason, connected_for.as_secs(), &info.dispatchers);
        add(
            tenant,
            Transition::Offline(reason),
            event_data::OFFLINE,
            data,
        );
    }
    if let Some(tenant) = gained {
        let cause = OnlineCause::TenantFound;
        let data = event_data::online(&info, cause);
        add(tenant, Transition::Online(cause), event_data::ONLINE, data);
    }
    let count = COUNT_TRANSITIONS.with([client.into(), number.into(), now.into()]);
    transaction.execute(count).await?;
    transaction.write_history(&history).await?;
    if writes_events {
        transaction.write_events(&events).await?;
    }
    log_transitions(&history);
    Ok(changed_rows)
}

async fn find(transaction: &mut SqliteTransaction, client: &ClientId) -> Result<Option<Row>> {
    let query = FIND_CONNECTION.with([client.into()]);
    Ok(transaction.fetch_all(query).await?.pop())
}

/// Returns `None` for a tenantless client.
fn org_of(row: &Row) -> Result<Option<Tenant>> {
    let account = row.text("account")?;
    let org_id = OrgId::new(&row.text("org_id")?).ok();
    Ok(org_id.map(|org_id| Tenant { org_id, account }))
}

fn client_info(row: &Row) -> Result<ClientInfo> {
    Ok(ClientInfo {
        canonical_facts: row.json("canonical_facts")?,
        dispatchers: row.json("dispatchers")?,
        tags: row.json("tags")?,
        client_version: row.text("client_version")?,
        ..ClientInfo::default()
    })
}
