//! Pages: of an organisation, of everybody.
//!
//! What filters ask for is read row by row, in the organisation's order: SQLite serves one process, and
//! an index of words would cost each message that is recorded more than the questions ever take.

use const_format::concatcp;
use sqlx::{QueryBuilder, Sqlite, SqlitePool};

use super::row::{self, CONNECTION_COLUMNS};
use crate::domain::OrgId;
use crate::store::{ClientPage, ConnectionPage, Filter, PageRequest, PageStart, StoreError};

/// A value as it is written.
const SAID: &str = "CASE said.type WHEN 'true' THEN 'true' WHEN 'false' THEN 'false' \
     ELSE CAST(said.value AS TEXT) END";

pub(super) async fn for_org(
    pool: &SqlitePool,
    org: &OrgId,
    wanted: &PageRequest,
) -> Result<ConnectionPage, StoreError> {
    // One transaction: the count and the page are of the same moment.
    let mut snapshot = pool.begin().await?;
    let mut count: i64 = 0;
    let mut page = QueryBuilder::<Sqlite>::new(concatcp!("SELECT ", CONNECTION_COLUMNS));
    push_found(&mut page, org, &wanted.filter);
    let offset = match &wanted.start {
        PageStart::Offset(offset) => {
            let mut total = QueryBuilder::<Sqlite>::new("SELECT count(*)");
            push_found(&mut total, org, &wanted.filter);
            count = total.build_query_scalar().fetch_one(&mut *snapshot).await?;
            i64::try_from(*offset).unwrap_or(i64::MAX)
        }
        PageStart::After(name) => {
            page.push(" AND client_id > ");
            page.push_bind(name);
            0
        }
    };
    page.push(" ORDER BY client_id LIMIT ");
    page.push_bind(i64::try_from(wanted.limit).unwrap_or(i64::MAX));
    page.push(" OFFSET ");
    page.push_bind(offset);
    let rows = page.build().fetch_all(&mut *snapshot).await?;
    snapshot.commit().await?;
    Ok(ConnectionPage {
        count: u64::try_from(count).unwrap_or(0),
        connections: rows.iter().map(row::connection).collect::<Result<_, _>>()?,
    })
}

/// `FROM connections WHERE` the organisation's and the filter's.
fn push_found(question: &mut QueryBuilder<Sqlite>, org: &OrgId, filter: &Filter) {
    question.push(" FROM connections WHERE org_id = ");
    question.push_bind(org.as_str());
    for name in &filter.dispatchers {
        question.push(
            " AND EXISTS (SELECT 1 FROM json_each(dispatchers) AS e \
             WHERE json_type(dispatchers) = 'object' AND replace(e.key, '_', '-') = ",
        );
        question.push_bind(name);
        question.push(")");
    }
    for (key, value) in &filter.tags {
        push_said(question, "tags", key);
        question.push(concatcp!(SAID, " = "));
        question.push_bind(value);
        question.push(")");
    }
    for (key, value) in &filter.facts {
        push_said(question, "canonical_facts", key);
        question.push(if Filter::is_bare_uuid(value) {
            concatcp!(
                "length(",
                SAID,
                ") IN (32, 36) AND replace(lower(",
                SAID,
                "), '-', '') = "
            )
        } else {
            concatcp!("lower(", SAID, ") = ")
        });
        question.push_bind(value);
        question.push(")");
    }
    for beginning in &filter.beginnings {
        question.push(" AND (client_id >= ");
        question.push_bind(beginning);
        question.push(" AND client_id < ");
        question.push_bind(Filter::after(beginning));
        let name = beginning.to_ascii_lowercase();
        question.push(" OR lower(canonical_facts ->> '$.fqdn') >= ");
        question.push_bind(name.clone());
        question.push(" AND lower(canonical_facts ->> '$.fqdn') < ");
        question.push_bind(Filter::after(&name));
        question.push(")");
    }
}

/// `AND EXISTS (… WHERE` on each value under a key: one, or each of a list. Numbers and truth are
/// compared as they are written.
fn push_said(question: &mut QueryBuilder<Sqlite>, column: &str, key: &str) {
    question.push(format!(
        " AND EXISTS (SELECT 1 FROM json_each({column}) AS e, json_each(CASE e.type WHEN 'array' \
         THEN e.value WHEN 'object' THEN '[]' ELSE json_array(CASE e.type WHEN 'true' THEN 'true' \
         WHEN 'false' THEN 'false' ELSE e.value END) END) AS said \
         WHERE json_type({column}) = 'object' AND e.key = "
    ));
    question.push_bind(key);
    question.push(" AND ");
}

pub(super) async fn owned(
    pool: &SqlitePool,
    offset: u64,
    limit: u64,
) -> Result<ClientPage, StoreError> {
    // One snapshot: the count and the page are of the same moment.
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
        count: u64::try_from(count).unwrap_or(0),
        clients,
    })
}
