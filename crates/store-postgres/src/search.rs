//! Lists the connections of one organization, with or without a filter, and the clients of all
//! organizations.
//!
//! One statement reads a page, so the count and the rows belong to the same snapshot. Triggers
//! maintain the counts and the search index (`crates/store-postgres/migrations/0004_connection_search.sql` and
//! `0005_plain_names.sql`).

use const_format::concatcp;
use sqlx::postgres::PgRow;
use sqlx::{PgPool, Postgres, QueryBuilder, Row as _};

use super::row::{self, CONNECTION_COLUMNS};
use domain::OrgId;
use store::{ClientPage, ConnectionFilter, ConnectionPage, PageRequest, PageStart, StoreError};

pub(super) async fn list_connections_for_org(
    pool: &PgPool,
    org: &OrgId,
    request: &PageRequest,
) -> Result<ConnectionPage, StoreError> {
    // The subquery skips the rows before the offset and reads only an index. Only the rows of the
    // page are read from the table.
    const PAGE_AT_OFFSET: &str = concatcp!(
        "SELECT total.count, page.* FROM (
             SELECT COALESCE(sum(delta), 0)::bigint AS count
               FROM org_connection_deltas WHERE org_id = $1) AS total
           LEFT JOIN (SELECT ",
        CONNECTION_COLUMNS,
        " FROM connections WHERE client_id IN (SELECT client_id FROM connections
               WHERE org_id = $1 ORDER BY client_id LIMIT $2 OFFSET $3)) AS page ON true
          ORDER BY page.client_id"
    );
    const PAGE_AFTER_CLIENT: &str = concatcp!(
        "SELECT ",
        CONNECTION_COLUMNS,
        " FROM connections WHERE org_id = $1 AND client_id > $3 ORDER BY client_id LIMIT $2"
    );
    if !request.filter.is_empty() {
        return list_filtered(pool, org, request).await;
    }
    let limit = i64::try_from(request.limit).unwrap_or(i64::MAX);
    let rows = match &request.start {
        PageStart::Offset(offset) => {
            let query = sqlx::query(PAGE_AT_OFFSET).bind(org.as_str()).bind(limit);
            query
                .bind(i64::try_from(*offset).unwrap_or(i64::MAX))
                .fetch_all(pool)
                .await?
        }
        PageStart::After(client_id) => {
            let query = sqlx::query(PAGE_AFTER_CLIENT)
                .bind(org.as_str())
                .bind(limit);
            query.bind(client_id).fetch_all(pool).await?
        }
    };
    connection_page(&rows, request)
}

async fn list_filtered(
    pool: &PgPool,
    org: &OrgId,
    request: &PageRequest,
) -> Result<ConnectionPage, StoreError> {
    let PageRequest {
        filter,
        start,
        limit,
    } = request;
    let sql_limit = i64::try_from(*limit).unwrap_or(i64::MAX);
    let offset = match start {
        PageStart::Offset(offset) => *offset,
        PageStart::After(client_id) => {
            let rows = filtered_rows_after(pool, org, filter, client_id, sql_limit).await?;
            return connection_page(&rows, request);
        }
    };
    // A fact usually matches one client. If all matches fit on the first page, the number of rows
    // on the page is the count, and no count query is needed.
    if offset == 0 && !filter.facts.is_empty() {
        let rows = filtered_rows_after(pool, org, filter, "", sql_limit).await?;
        let count = rows.len() as u64;
        if count < *limit {
            let connections = rows.iter().map(row::connection).collect::<Result<_, _>>()?;
            return Ok(ConnectionPage {
                total_count: count,
                connections,
            });
        }
    }
    let mut query = QueryBuilder::<Postgres>::new("");
    query.push("SELECT total.count, page.* FROM (SELECT count(*) AS count");
    push_from_and_where(&mut query, org, filter);
    query.push(concatcp!(
        ") AS total LEFT JOIN (SELECT ",
        CONNECTION_COLUMNS
    ));
    push_from_and_where(&mut query, org, filter);
    query.push(" ORDER BY client_id LIMIT ");
    query.push_bind(sql_limit);
    query.push(" OFFSET ");
    query.push_bind(i64::try_from(offset).unwrap_or(i64::MAX));
    query.push(") AS page ON true ORDER BY page.client_id");
    let rows = fetch_unprepared(query, pool).await?;
    connection_page(&rows, request)
}

/// Selects the rows that match the filter and have a client id greater than `after_client`.
async fn filtered_rows_after(
    pool: &PgPool,
    org: &OrgId,
    filter: &ConnectionFilter,
    after_client: &str,
    limit: i64,
) -> Result<Vec<PgRow>, StoreError> {
    let mut query = QueryBuilder::<Postgres>::new(concatcp!("SELECT ", CONNECTION_COLUMNS));
    push_from_and_where(&mut query, org, filter);
    query.push(" AND client_id > ");
    query.push_bind(after_client.to_owned());
    query.push(" ORDER BY client_id LIMIT ");
    query.push_bind(limit);
    fetch_unprepared(query, pool).await
}

/// Runs a query without caching its plan. The best plan depends on the number of matches, which
/// depends on the search terms.
async fn fetch_unprepared(
    mut query: QueryBuilder<Postgres>,
    pool: &PgPool,
) -> Result<Vec<PgRow>, StoreError> {
    let rows = query.build().persistent(false).fetch_all(pool).await?;
    Ok(rows)
}

/// Appends `FROM connections WHERE`, the condition on the organization and the conditions of the
/// filter.
fn push_from_and_where(query: &mut QueryBuilder<Postgres>, org: &OrgId, filter: &ConnectionFilter) {
    query.push(" FROM connections WHERE org_id = ");
    query.push_bind(org.as_str());
    let terms = search_terms(org, filter);
    if !terms.is_empty() {
        query.push(
            " AND client_id IN (
                 SELECT s.client_id FROM connection_search AS s WHERE s.term_hashes @> ARRAY[",
        );
        let mut hashes = query.separated(", ");
        for term in terms {
            // PostgreSQL computes the hash. The query planner can then estimate the number of
            // matches from its statistics of `term_hashes`.
            hashes.push("hashtextextended(");
            hashes.push_bind_unseparated(term);
            hashes.push_unseparated(", 0)");
        }
        query.push("])");
    }
    for prefix in &filter.prefixes {
        let fqdn_prefix = prefix.to_ascii_lowercase();
        query.push(" AND client_id IN (SELECT client_id FROM connections WHERE org_id = ");
        query.push_bind(org.as_str());
        push_prefix_range(query, "client_id", prefix.clone());
        query.push(" UNION ALL SELECT client_id FROM connection_search WHERE org_id = ");
        query.push_bind(org.as_str());
        push_prefix_range(query, "fqdn", fqdn_prefix);
        query.push(")");
    }
}

fn push_prefix_range(query: &mut QueryBuilder<Postgres>, column: &str, prefix: String) {
    let range_end = ConnectionFilter::end_of_prefix_range(&prefix);
    query.push(format!(" AND {column} >= "));
    query.push_bind(prefix);
    query.push(format!(" AND {column} < "));
    query.push_bind(range_end);
}

/// Returns the search terms of a filter. The SQL function `search_terms` and the trigger create the
/// terms of a connection in the same format.
fn search_terms(org: &OrgId, filter: &ConnectionFilter) -> Vec<String> {
    let key_value_term =
        |kind: &str, (key, value): &(String, String)| format!("{kind}:{key}\u{1f}{value}");
    let facts = filter.facts.iter().map(|fact| key_value_term("fact", fact));
    let dispatchers = filter.dispatchers.iter();
    let dispatchers = dispatchers.map(|name| format!("dispatcher:{name}"));
    let tags = filter.tags.iter().map(|tag| key_value_term("tag", tag));
    let terms = facts.chain(dispatchers).chain(tags);
    terms
        .map(|term| format!("{}\u{1f}{term}", org.as_str()))
        .collect()
}

fn connection_page(rows: &[PgRow], request: &PageRequest) -> Result<ConnectionPage, StoreError> {
    let count: i64 = match (&request.start, rows.first()) {
        (PageStart::Offset(_), Some(row)) => row.try_get("count")?,
        _ => 0,
    };
    let mut connections = Vec::with_capacity(rows.len());
    for row in rows {
        // The LEFT JOIN returns one row with a null client_id if the page is empty.
        if row.try_get::<Option<&str>, _>("client_id")?.is_some() {
            connections.push(row::connection(row)?);
        }
    }
    Ok(ConnectionPage {
        total_count: u64::try_from(count).unwrap_or(0),
        connections,
    })
}

pub(super) async fn list_all_clients(
    pool: &PgPool,
    offset: u64,
    limit: u64,
) -> Result<ClientPage, StoreError> {
    let rows = sqlx::query(
        "SELECT total.count, page.* FROM (
             SELECT COALESCE(sum(delta), 0)::bigint AS count FROM org_connection_deltas) AS total
           LEFT JOIN (
             SELECT client_id, org_id, COALESCE(account, '') AS account FROM connections
              WHERE client_id IN (SELECT client_id FROM connections
                  WHERE org_id <> '' ORDER BY org_id, client_id LIMIT $1 OFFSET $2)) AS page ON true
          ORDER BY page.org_id, page.client_id",
    )
    .bind(i64::try_from(limit).unwrap_or(i64::MAX))
    .bind(i64::try_from(offset).unwrap_or(i64::MAX))
    .fetch_all(pool)
    .await?;
    let count: i64 = rows.first().map_or(Ok(0), |row| row.try_get("count"))?;
    let mut clients = Vec::with_capacity(rows.len());
    for row in &rows {
        if row.try_get::<Option<&str>, _>("client_id")?.is_some() {
            clients.push((row::tenant(row)?, row::client_id(row)?));
        }
    }
    Ok(ClientPage {
        total_count: u64::try_from(count).unwrap_or(0),
        clients,
    })
}

/// Replaces the rows of each organization in `org_connection_deltas` by one row with the sum of the
/// deltas.
///
/// A concurrent query reads either the old rows or the new row. Two concurrent calls are safe,
/// because each call adds only the deltas of rows that this call deleted.
pub(super) async fn compact_org_connection_deltas(pool: &PgPool) -> Result<(), StoreError> {
    sqlx::query(
        "WITH deleted AS (
             DELETE FROM org_connection_deltas WHERE org_id IN (
                 SELECT org_id FROM org_connection_deltas GROUP BY org_id HAVING count(*) > 1)
             RETURNING org_id, delta)
         INSERT INTO org_connection_deltas
         SELECT org_id, sum(delta) FROM deleted GROUP BY org_id HAVING sum(delta) <> 0",
    )
    .execute(pool)
    .await?;
    Ok(())
}
