//! Pages: of an organisation, of everybody.
//!
//! Each is one statement, so that the count and the page are of one moment. The numbers of connections
//! and the words that they are found by are kept by triggers (`migrations/postgres/0004_finding.sql`).

use const_format::concatcp;
use sqlx::postgres::PgRow;
use sqlx::{PgPool, Postgres, QueryBuilder, Row as _};

use super::row::{self, CONNECTION_COLUMNS};
use crate::domain::OrgId;
use crate::store::{ClientPage, ConnectionPage, Filter, PageRequest, PageStart, StoreError};

pub(super) async fn for_org(
    pool: &PgPool,
    org: &OrgId,
    wanted: &PageRequest,
) -> Result<ConnectionPage, StoreError> {
    // Skipped in the index alone: only the page's own rows are read.
    const AT: &str = concatcp!(
        "SELECT total.count, page.* FROM (
             SELECT COALESCE(sum(change), 0)::bigint AS count FROM org_connection_deltas WHERE org_id = $1) AS total
           LEFT JOIN (SELECT ",
        CONNECTION_COLUMNS,
        " FROM connections WHERE client_id IN (SELECT client_id FROM connections
               WHERE org_id = $1 ORDER BY client_id LIMIT $2 OFFSET $3)) AS page ON true
          ORDER BY page.client_id"
    );
    const AFTER: &str = concatcp!(
        "SELECT ",
        CONNECTION_COLUMNS,
        " FROM connections WHERE org_id = $1 AND client_id > $3 ORDER BY client_id LIMIT $2"
    );
    if !wanted.filter.is_empty() {
        return filtered(pool, org, wanted).await;
    }
    let limit = i64::try_from(wanted.limit).unwrap_or(i64::MAX);
    let rows = match &wanted.start {
        PageStart::Offset(offset) => {
            let question = sqlx::query(AT).bind(org.as_str()).bind(limit);
            question
                .bind(i64::try_from(*offset).unwrap_or(i64::MAX))
                .fetch_all(pool)
                .await?
        }
        PageStart::After(name) => {
            let question = sqlx::query(AFTER).bind(org.as_str()).bind(limit);
            question.bind(name).fetch_all(pool).await?
        }
    };
    listing(&rows, wanted)
}

async fn filtered(
    pool: &PgPool,
    org: &OrgId,
    wanted: &PageRequest,
) -> Result<ConnectionPage, StoreError> {
    let PageRequest {
        filter,
        start,
        limit,
    } = wanted;
    let most = i64::try_from(*limit).unwrap_or(i64::MAX);
    let offset = match start {
        PageStart::Offset(offset) => *offset,
        PageStart::After(name) => {
            let rows = page(pool, org, filter, name, most).await?;
            return listing(&rows, wanted);
        }
    };
    // A fact is nearly always one client's: then the page says how many there are.
    if offset == 0 && !filter.facts.is_empty() {
        let rows = page(pool, org, filter, "", most).await?;
        let count = rows.len() as u64;
        if count < *limit {
            let connections = rows.iter().map(row::connection).collect::<Result<_, _>>()?;
            return Ok(ConnectionPage { count, connections });
        }
    }
    let mut question = QueryBuilder::<Postgres>::new("");
    question.push("SELECT total.count, page.* FROM (SELECT count(*) AS count");
    push_found(&mut question, org, filter);
    question.push(concatcp!(
        ") AS total LEFT JOIN (SELECT ",
        CONNECTION_COLUMNS
    ));
    push_found(&mut question, org, filter);
    question.push(" ORDER BY client_id LIMIT ");
    question.push_bind(most);
    question.push(" OFFSET ");
    question.push_bind(i64::try_from(offset).unwrap_or(i64::MAX));
    question.push(") AS page ON true ORDER BY page.client_id");
    let rows = unprepared(question, pool).await?;
    listing(&rows, wanted)
}

/// Those that stand after a name.
async fn page(
    pool: &PgPool,
    org: &OrgId,
    filter: &Filter,
    after: &str,
    limit: i64,
) -> Result<Vec<PgRow>, StoreError> {
    let mut question = QueryBuilder::<Postgres>::new(concatcp!("SELECT ", CONNECTION_COLUMNS));
    push_found(&mut question, org, filter);
    question.push(" AND client_id > ");
    question.push_bind(after.to_owned());
    question.push(" ORDER BY client_id LIMIT ");
    question.push_bind(limit);
    unprepared(question, pool).await
}

/// Not kept prepared: how many are found depends on the words, and the plan on how many.
async fn unprepared(
    mut question: QueryBuilder<Postgres>,
    pool: &PgPool,
) -> Result<Vec<PgRow>, StoreError> {
    let rows = question.build().persistent(false).fetch_all(pool).await?;
    Ok(rows)
}

/// `FROM connections WHERE` the organisation's and the filter's.
fn push_found(question: &mut QueryBuilder<Postgres>, org: &OrgId, filter: &Filter) {
    question.push(" FROM connections WHERE org_id = ");
    question.push_bind(org.as_str());
    let terms = terms(org, filter);
    if !terms.is_empty() {
        question.push(
            " AND client_id IN (SELECT f.client_id FROM connection_search AS f WHERE f.terms @> ARRAY[",
        );
        let mut words = question.separated(", ");
        for term in terms {
            // Hashed there: the planner knows by its hash how common a word is.
            words.push("hashtextextended(");
            words.push_bind_unseparated(term);
            words.push_unseparated(", 0)");
        }
        question.push("])");
    }
    for beginning in &filter.beginnings {
        let name = beginning.to_ascii_lowercase();
        question.push(" AND client_id IN (SELECT client_id FROM connections WHERE org_id = ");
        question.push_bind(org.as_str());
        push_range(question, "client_id", beginning.clone());
        question.push(" UNION ALL SELECT client_id FROM connection_search WHERE org_id = ");
        question.push_bind(org.as_str());
        push_range(question, "name", name);
        question.push(")");
    }
}

fn push_range(question: &mut QueryBuilder<Postgres>, column: &str, beginning: String) {
    let end = Filter::after(&beginning);
    question.push(format!(" AND {column} >= "));
    question.push_bind(beginning);
    question.push(format!(" AND {column} < "));
    question.push_bind(end);
}

/// As the trigger makes them of `search_terms`.
fn terms(org: &OrgId, filter: &Filter) -> Vec<String> {
    let pair = |kind: &str, (key, value): &(String, String)| format!("{kind}:{key}\u{1f}{value}");
    let facts = filter.facts.iter().map(|fact| pair("fact", fact));
    let dispatchers = filter.dispatchers.iter();
    let dispatchers = dispatchers.map(|name| format!("dispatcher:{name}"));
    let tags = filter.tags.iter().map(|tag| pair("tag", tag));
    let words = facts.chain(dispatchers).chain(tags);
    words
        .map(|word| format!("{}\u{1f}{word}", org.as_str()))
        .collect()
}

fn listing(rows: &[PgRow], wanted: &PageRequest) -> Result<ConnectionPage, StoreError> {
    let count: i64 = match (&wanted.start, rows.first()) {
        (PageStart::Offset(_), Some(row)) => row.try_get("count")?,
        _ => 0,
    };
    let mut connections = Vec::with_capacity(rows.len());
    for row in rows {
        // Nobody on the page: the count stands alone.
        if row.try_get::<Option<&str>, _>("client_id")?.is_some() {
            connections.push(row::connection(row)?);
        }
    }
    Ok(ConnectionPage {
        count: u64::try_from(count).unwrap_or(0),
        connections,
    })
}

pub(super) async fn owned(
    pool: &PgPool,
    offset: u64,
    limit: u64,
) -> Result<ClientPage, StoreError> {
    let rows = sqlx::query(
        "SELECT total.count, page.* FROM (
             SELECT COALESCE(sum(change), 0)::bigint AS count FROM org_connection_deltas) AS total
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
        count: u64::try_from(count).unwrap_or(0),
        clients,
    })
}

/// Folds what statements changed into one number an organisation. Whoever counts meanwhile sees the
/// one or the other; of two that fold at once, each adds up only what it took away itself.
pub(super) async fn fold_counts(pool: &PgPool) -> Result<(), StoreError> {
    sqlx::query(
        "WITH taken AS (
             DELETE FROM org_connection_deltas WHERE org_id IN (
                 SELECT org_id FROM org_connection_deltas GROUP BY org_id HAVING count(*) > 1)
             RETURNING org_id, change)
         INSERT INTO org_connection_deltas
         SELECT org_id, sum(change) FROM taken GROUP BY org_id HAVING sum(change) <> 0",
    )
    .execute(pool)
    .await?;
    Ok(())
}
