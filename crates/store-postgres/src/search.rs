//! Lists the connections of one organization, with or without a filter, and the clients of one or
//! all organizations.
//!
//! One statement reads a page, so the count and the rows belong to the same snapshot. Triggers
//! maintain the counts and the search index
//! (`crates/store-postgres/migrations/0004_connection_search.sql` and
//! `0007_bounded_maintenance.sql`).

use const_format::concatcp;

use crate::PostgresStore;
use crate::driver::Row;
use domain::OrgId;
use store::sql::{
    Access, CONNECTION_COLUMNS, ColumnReader as _, LAST_SEEN, Query, RowPage, RowVisitor,
    SqlDatabase as _,
};
use store::{ConnectionFilter, MAX_FILTERED_COUNT, PageRequest, PageStart, Result};

/// Up to this number of clients, the search index is read before the table. Few, because all of their
/// rows are in memory at the same time.
const FEW_MATCHES: u64 = 10;

store::statements! {
    /// The subquery skips the rows before the offset and reads only an index. Only the rows of the
    /// page are read from the table.
    PAGE_AT_OFFSET = concatcp!(
        "SELECT total.count, page.* FROM (
             SELECT COALESCE(sum(delta), 0)::bigint AS count
               FROM org_connection_deltas WHERE org_id = $1) AS total
           LEFT JOIN (SELECT ", CONNECTION_COLUMNS, "
                        FROM connections WHERE client_id IN (SELECT client_id FROM connections
               WHERE org_id = $1 ORDER BY client_id LIMIT $2 OFFSET $3)) AS page ON true
          ORDER BY page.client_id"
    );

    PAGE_AFTER_CLIENT = concatcp!(
        "SELECT ", CONNECTION_COLUMNS, " FROM connections
          WHERE org_id = $1 AND client_id > $3 ORDER BY client_id LIMIT $2"
    );

    PAGE_OF_ORG_CLIENTS = "
        SELECT total.count, page.* FROM (
            SELECT COALESCE(sum(delta), 0)::bigint AS count
              FROM org_connection_deltas WHERE org_id = $1) AS total
          LEFT JOIN (
            SELECT client_id, org_id, COALESCE(account, '') AS account FROM connections
             WHERE client_id IN (SELECT client_id FROM connections
                 WHERE org_id = $1 ORDER BY client_id LIMIT $2 OFFSET $3)) AS page ON true
         ORDER BY page.client_id";

    PAGE_OF_ALL_CLIENTS = "
        SELECT total.count, page.* FROM (
            SELECT COALESCE(sum(delta), 0)::bigint AS count FROM org_connection_deltas) AS total
          LEFT JOIN (
            SELECT client_id, org_id, COALESCE(account, '') AS account FROM connections
             WHERE client_id IN (SELECT client_id FROM connections
                 WHERE org_id <> '' ORDER BY org_id, client_id LIMIT $1 OFFSET $2)) AS page ON true
         ORDER BY page.org_id, page.client_id";
}

pub(crate) async fn visit_connections(
    store: &PostgresStore,
    org: &OrgId,
    request: &PageRequest,
    visit: RowVisitor<'_, Row>,
) -> Result<u64> {
    let (filter, limit) = (&request.filter, request.limit);
    // A fact usually matches one client.
    if !filter.facts.is_empty()
        && let Some(total_count) = visit_few_matches(store, org, request, visit).await?
    {
        return Ok(total_count);
    }
    match &request.start {
        PageStart::Offset(offset) if filter.is_empty() => {
            let parameters = [org.into(), limit.into(), (*offset).into()];
            visit_page(store, PAGE_AT_OFFSET.with(parameters), visit).await
        }
        PageStart::After(client_id) if filter.is_empty() => {
            let parameters = [org.into(), limit.into(), client_id.as_str().into()];
            let query = PAGE_AFTER_CLIENT.with(parameters);
            visit_page_without_count(store, query, visit).await
        }
        PageStart::After(client_id) => {
            let query = filtered_page_after(org, filter, client_id, limit);
            visit_page_without_count(store, query, visit).await
        }
        PageStart::Offset(offset) => {
            let query = filtered_page_at_offset(org, filter, *offset, limit);
            visit_page(store, query, visit).await
        }
    }
}

/// Reads a page if only a few clients have the terms of the filter. Returns `None`, without a call of
/// `visit`, if there can be more.
async fn visit_few_matches(
    store: &PostgresStore,
    org: &OrgId,
    request: &PageRequest,
    visit: RowVisitor<'_, Row>,
) -> Result<Option<u64>> {
    let (after_client, offset) = match &request.start {
        PageStart::Offset(offset) => ("", *offset),
        PageStart::After(client_id) => (client_id.as_str(), 0),
    };
    let query = few_matches(org, &request.filter, after_client);
    let mut rows = store.fetch_all(Access::Read, query).await?;
    let candidates = rows.first().map_or(Ok(0), |row| row.count("count"))?;
    if candidates >= FEW_MATCHES {
        return Ok(None);
    }
    // Without a match, the only row is that of the count.
    if let Some(row) = rows.first()
        && row.optional_text("client_id")?.is_none()
    {
        rows.clear();
    }
    let total_count = rows.len() as u64;
    let first = usize::try_from(offset).unwrap_or(usize::MAX);
    let page_length = usize::try_from(request.limit).unwrap_or(usize::MAX);
    for row in rows.into_iter().skip(first).take(page_length) {
        if visit(row)?.is_break() {
            break;
        }
    }
    Ok(Some(match request.start {
        PageStart::Offset(_) => total_count,
        PageStart::After(_) => 0,
    }))
}

pub(crate) async fn fetch_all_clients(
    store: &PostgresStore,
    offset: u64,
    limit: u64,
) -> Result<RowPage<Row>> {
    let query = PAGE_OF_ALL_CLIENTS.with([limit.into(), offset.into()]);
    fetch_page(store, query).await
}

pub(crate) async fn fetch_org_clients(
    store: &PostgresStore,
    org: &OrgId,
    offset: u64,
    limit: u64,
) -> Result<RowPage<Row>> {
    let query = PAGE_OF_ORG_CLIENTS.with([org.into(), limit.into(), offset.into()]);
    fetch_page(store, query).await
}

/// Reads a page whose rows have the total count in the column `count`. The `LEFT JOIN` returns one
/// row with a null `client_id` if the page is empty.
async fn fetch_page(store: &PostgresStore, query: Query<'_>) -> Result<RowPage<Row>> {
    let rows = store.fetch_all(Access::Read, query).await?;
    let total_count = rows.first().map_or(Ok(0), |row| row.count("count"))?;
    Ok(RowPage { total_count, rows })
}

/// Like [`fetch_page`], but passes the rows to `visit` and returns the total count.
async fn visit_page(
    store: &PostgresStore,
    query: Query<'_>,
    visit: RowVisitor<'_, Row>,
) -> Result<u64> {
    let mut total_count = None;
    let mut visit_row = |row: Row| {
        if total_count.is_none() {
            total_count = Some(row.count("count")?);
        }
        visit(row)
    };
    store
        .visit_rows(Access::Read, query, &mut visit_row)
        .await?;
    Ok(total_count.unwrap_or(0))
}

async fn visit_page_without_count(
    store: &PostgresStore,
    query: Query<'_>,
    visit: RowVisitor<'_, Row>,
) -> Result<u64> {
    store.visit_rows(Access::Read, query, visit).await?;
    Ok(0)
}

/// Selects the rows that match the filter, and counts the matches up to [`MAX_FILTERED_COUNT`] and one.
///
/// The plan of a filtered query is not cached. The best plan depends on the number of matches,
/// which depends on the search terms.
fn filtered_page_at_offset<'a>(
    org: &'a OrgId,
    filter: &'a ConnectionFilter,
    offset: u64,
    limit: u64,
) -> Query<'a> {
    let mut query =
        Query::dynamic("SELECT total.count, page.* FROM (SELECT count(*) AS count FROM (SELECT");
    push_from_and_where(&mut query, org, filter);
    query.push_with(" LIMIT ", MAX_FILTERED_COUNT + 1);
    query.push(concatcp!(
        ") AS matches) AS total LEFT JOIN (SELECT ",
        CONNECTION_COLUMNS
    ));
    push_from_and_where(&mut query, org, filter);
    query.push_with(" ORDER BY client_id LIMIT ", limit);
    query.push_with(" OFFSET ", offset);
    query.push(") AS page ON true ORDER BY page.client_id");
    query.without_cache()
}

/// Selects the rows that match the filter and have a client id greater than `after_client`.
fn filtered_page_after<'a>(
    org: &'a OrgId,
    filter: &'a ConnectionFilter,
    after_client: &'a str,
    limit: u64,
) -> Query<'a> {
    let mut query = Query::dynamic(concatcp!("SELECT ", CONNECTION_COLUMNS));
    push_from_and_where(&mut query, org, filter);
    query.push_with(" AND client_id > ", after_client);
    query.push_with(" ORDER BY client_id LIMIT ", limit);
    query.without_cache()
}

/// Selects the rows that match the filter. The column `count` is the number of clients with the search
/// terms of the filter, at most [`FEW_MATCHES`]: then there can be more clients than rows.
///
/// PostgreSQL estimates that a rare term matches thousands of clients. A query with `ORDER BY` and a small
/// `LIMIT` would therefore read the table in the order of the client ids, and expect to find the first
/// matches soon: 1.5 s instead of 1 ms with four million clients. The materialized query reads the index
/// first. Its own limit is higher than the estimate.
fn few_matches<'a>(
    org: &'a OrgId,
    filter: &'a ConnectionFilter,
    after_client: &'a str,
) -> Query<'a> {
    let mut query = Query::dynamic(
        "WITH candidates AS MATERIALIZED (SELECT s.client_id FROM connection_search AS s WHERE ",
    );
    push_term_condition(&mut query, search_terms(org, filter));
    query.push_with(" LIMIT ", MAX_FILTERED_COUNT + 1);
    query.push("), few AS MATERIALIZED (SELECT client_id FROM candidates");
    query.push_with(" LIMIT ", FEW_MATCHES);
    query.push(concatcp!(
        ") SELECT total.count, page.* FROM (SELECT count(*) AS count FROM few) AS total
           LEFT JOIN (SELECT ",
        CONNECTION_COLUMNS,
        " FROM connections WHERE client_id IN (SELECT client_id FROM few)"
    ));
    query.push_with(" AND org_id = ", org);
    query.push_with(" AND client_id > ", after_client);
    push_row_conditions(&mut query, org, filter);
    query.push(") AS page ON true ORDER BY page.client_id");
    query.without_cache()
}

/// Appends `FROM connections WHERE`, the condition on the organization and the conditions of the
/// filter.
fn push_from_and_where<'a>(query: &mut Query<'a>, org: &'a OrgId, filter: &'a ConnectionFilter) {
    query.push_with(" FROM connections WHERE org_id = ", org);
    let terms = search_terms(org, filter);
    if !terms.is_empty() {
        query.push(" AND client_id IN (SELECT s.client_id FROM connection_search AS s WHERE ");
        push_term_condition(query, terms);
        query.push(")");
    }
    push_row_conditions(query, org, filter);
}

/// Appends the condition that a row `s` of `connection_search` contains all terms.
fn push_term_condition(query: &mut Query<'_>, terms: Vec<String>) {
    query.push("s.term_hashes @> ARRAY[");
    for (index, term) in terms.into_iter().enumerate() {
        // PostgreSQL computes the hash. The query planner can then estimate the number of matches from
        // its statistics of `term_hashes`.
        query.push(if index == 0 { "" } else { ", " });
        query.push_with("hashtextextended(", term).push(", 0)");
    }
    query.push("]");
}

/// Appends the conditions that are not search terms.
fn push_row_conditions<'a>(query: &mut Query<'a>, org: &'a OrgId, filter: &'a ConnectionFilter) {
    if let Some(time) = filter.seen_after {
        query.push_with(concatcp!(" AND ", LAST_SEEN, " > "), time);
    }
    if let Some(time) = filter.seen_before {
        query.push_with(concatcp!(" AND ", LAST_SEEN, " < "), time);
    }
    for prefix in &filter.prefixes {
        query.push_with(
            " AND client_id IN (SELECT client_id FROM connections WHERE org_id = ",
            org,
        );
        push_prefix_range(query, "client_id", prefix.clone());
        query.push_with(
            " UNION ALL SELECT client_id FROM connection_search WHERE org_id = ",
            org,
        );
        push_prefix_range(query, "fqdn", prefix.to_ascii_lowercase());
        query.push(")");
    }
}

fn push_prefix_range(query: &mut Query<'_>, column: &str, prefix: String) {
    let range_end = ConnectionFilter::end_of_prefix_range(&prefix);
    query.push_with(&format!(" AND {column} >= "), prefix);
    query.push_with(&format!(" AND {column} < "), range_end);
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

/// Returns the name and the text of the queries of this module, with several filters.
pub(crate) fn example_queries() -> Vec<(&'static str, String)> {
    let mut queries = Vec::new();
    for (org, filter) in &store::sql::example_filters() {
        let at_offset = filtered_page_at_offset(org, filter, 0, 1);
        let after = filtered_page_after(org, filter, "", 1);
        queries.push(("filtered_page_at_offset", at_offset.sql().to_string()));
        queries.push(("filtered_page_after", after.sql().to_string()));
        if !filter.facts.is_empty() {
            let few = few_matches(org, filter, "");
            queries.push(("few_matches", few.sql().to_string()));
        }
    }
    queries
}
