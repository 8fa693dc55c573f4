//! Lists the connections of one organization, with or without a filter, and the clients of all
//! organizations.
//!
//! Filters are evaluated for each row of the organization, in the order of the client ids. The
//! SQLite schema has no search index, because the index would cost more time for each recorded
//! message than it would save for each query.

use const_format::concatcp;
use sqlx::{QueryBuilder, Sqlite, SqlitePool};

use super::row::{self, CONNECTION_COLUMNS};
use domain::OrgId;
use store::{ClientPage, ConnectionFilter, ConnectionPage, PageRequest, PageStart, StoreError};

/// SQL expression that converts the JSON value `element` to text.
const ELEMENT_TEXT: &str = "CASE element.type WHEN 'true' THEN 'true' WHEN 'false' THEN 'false' \
     ELSE CAST(element.value AS TEXT) END";

pub(super) async fn list_connections_for_org(
    pool: &SqlitePool,
    org: &OrgId,
    request: &PageRequest,
) -> Result<ConnectionPage, StoreError> {
    // One transaction reads the count and the rows, so both belong to the same snapshot.
    let mut snapshot = pool.begin().await?;
    let mut count: i64 = 0;
    let mut page = QueryBuilder::<Sqlite>::new(concatcp!("SELECT ", CONNECTION_COLUMNS));
    push_from_and_where(&mut page, org, &request.filter);
    let offset = match &request.start {
        PageStart::Offset(offset) => {
            let mut total = QueryBuilder::<Sqlite>::new("SELECT count(*)");
            push_from_and_where(&mut total, org, &request.filter);
            count = total.build_query_scalar().fetch_one(&mut *snapshot).await?;
            i64::try_from(*offset).unwrap_or(i64::MAX)
        }
        PageStart::After(client_id) => {
            page.push(" AND client_id > ");
            page.push_bind(client_id);
            0
        }
    };
    page.push(" ORDER BY client_id LIMIT ");
    page.push_bind(i64::try_from(request.limit).unwrap_or(i64::MAX));
    page.push(" OFFSET ");
    page.push_bind(offset);
    let rows = page.build().fetch_all(&mut *snapshot).await?;
    snapshot.commit().await?;
    Ok(ConnectionPage {
        total_count: u64::try_from(count).unwrap_or(0),
        connections: rows.iter().map(row::connection).collect::<Result<_, _>>()?,
    })
}

/// Appends `FROM connections WHERE`, the condition on the organization and the conditions of the
/// filter.
fn push_from_and_where(query: &mut QueryBuilder<Sqlite>, org: &OrgId, filter: &ConnectionFilter) {
    query.push(" FROM connections WHERE org_id = ");
    query.push_bind(org.as_str());
    for name in &filter.dispatchers {
        query.push(
            " AND EXISTS (SELECT 1 FROM json_each(dispatchers) AS entry \
             WHERE json_type(dispatchers) = 'object' AND replace(entry.key, '_', '-') = ",
        );
        query.push_bind(name);
        query.push(")");
    }
    for (key, value) in &filter.tags {
        push_exists_element(query, "tags", key);
        query.push(concatcp!(ELEMENT_TEXT, " = "));
        query.push_bind(value);
        query.push(")");
    }
    for (key, value) in &filter.facts {
        push_exists_element(query, "canonical_facts", key);
        query.push(if ConnectionFilter::is_uuid_without_dashes(value) {
            concatcp!(
                "length(",
                ELEMENT_TEXT,
                ") IN (32, 36) AND replace(lower(",
                ELEMENT_TEXT,
                "), '-', '') = "
            )
        } else {
            concatcp!("lower(", ELEMENT_TEXT, ") = ")
        });
        query.push_bind(value);
        query.push(")");
    }
    for prefix in &filter.prefixes {
        query.push(" AND (client_id >= ");
        query.push_bind(prefix);
        query.push(" AND client_id < ");
        query.push_bind(ConnectionFilter::end_of_prefix_range(prefix));
        let fqdn_prefix = prefix.to_ascii_lowercase();
        query.push(" OR lower(canonical_facts ->> '$.fqdn') >= ");
        query.push_bind(fqdn_prefix.clone());
        query.push(" AND lower(canonical_facts ->> '$.fqdn') < ");
        query.push_bind(ConnectionFilter::end_of_prefix_range(&fqdn_prefix));
        query.push(")");
    }
}

/// Appends `AND EXISTS (… WHERE … AND`. The caller must append a condition on `element` and a
/// closing parenthesis.
///
/// `element` is the value of `key`. If the value is a list, `element` is each element of the list.
/// Numbers and booleans are compared as text.
fn push_exists_element(query: &mut QueryBuilder<Sqlite>, column: &str, key: &str) {
    query.push(format!(
        " AND EXISTS (SELECT 1 FROM json_each({column}) AS entry, json_each(CASE entry.type \
         WHEN 'array' THEN entry.value WHEN 'object' THEN '[]' ELSE json_array(CASE entry.type \
         WHEN 'true' THEN 'true' WHEN 'false' THEN 'false' ELSE entry.value END) END) AS element \
         WHERE json_type({column}) = 'object' AND entry.key = "
    ));
    query.push_bind(key);
    query.push(" AND ");
}

pub(super) async fn list_all_clients(
    pool: &SqlitePool,
    offset: u64,
    limit: u64,
) -> Result<ClientPage, StoreError> {
    // One transaction reads the count and the rows, so both belong to the same snapshot.
    let mut snapshot = pool.begin().await?;
    let count: i64 = sqlx::query_scalar("SELECT count(*) FROM connections WHERE org_id <> ''")
        .fetch_one(&mut *snapshot)
        .await?;
    let rows = sqlx::query(
        "SELECT client_id, org_id, account FROM connections
          WHERE org_id <> '' ORDER BY org_id, client_id LIMIT ? OFFSET ?",
    )
    .bind(i64::try_from(limit).unwrap_or(i64::MAX))
    .bind(i64::try_from(offset).unwrap_or(i64::MAX))
    .fetch_all(&mut *snapshot)
    .await?;
    snapshot.commit().await?;
    let mut clients = Vec::with_capacity(rows.len());
    for row in &rows {
        clients.push((row::tenant(row)?, row::client_id(row)?));
    }
    Ok(ClientPage {
        total_count: u64::try_from(count).unwrap_or(0),
        clients,
    })
}
