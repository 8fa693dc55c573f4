//! Queries for the connections of one organization, with or without a filter.
//!
//! A filter reads the index `connections_search` in the order of the client ids. The index has a summary of the
//! search terms of each client, so only the rows of clients that can match are read and checked
//! (`search_signature`).

use const_format::concatcp;

use crate::search_signature::{SIGNATURE_COLUMNS, signature_of_filter, signature_of_prefix};
use domain::OrgId;
use store::sql::{CONNECTION_COLUMNS, LAST_SEEN, Query};
use store::{ConnectionFilter, MAX_FILTERED_COUNT, PageRequest, PageStart};

/// SQL expression that converts the JSON value `element` to text.
const ELEMENT_TEXT: &str = "CASE element.type WHEN 'true' THEN 'true' WHEN 'false' THEN 'false' \
     ELSE CAST(element.value AS TEXT) END";

pub(crate) fn count_query<'a>(org: &'a OrgId, filter: &'a ConnectionFilter) -> Query<'a> {
    if filter.is_empty() {
        let mut count = Query::dynamic("SELECT count(*) AS count FROM connections");
        count.push_with(" WHERE org_id = ", org);
        return count;
    }
    let mut count = Query::dynamic("SELECT count(*) AS count FROM (SELECT 1");
    push_matches(&mut count, org, filter, None);
    count.push_with(" LIMIT ", MAX_FILTERED_COUNT + 1).push(")");
    count
}

pub(crate) fn page_query<'a>(org: &'a OrgId, request: &'a PageRequest) -> Query<'a> {
    let PageRequest {
        filter,
        start,
        limit,
    } = request;
    let (skipped_rows, after_client) = match start {
        PageStart::Offset(offset) => (*offset, None),
        PageStart::After(client_id) => (0, Some(client_id.as_str())),
    };
    let mut page = Query::dynamic(concatcp!("SELECT ", CONNECTION_COLUMNS));
    if !filter.is_empty() {
        push_matches(&mut page, org, filter, after_client);
        // The candidates are in this order, so SQLite does not sort.
        page.push_with(" ORDER BY candidate_id LIMIT ", *limit);
        page.push_with(" OFFSET ", skipped_rows);
        return page;
    }
    page.push_with(" FROM connections WHERE org_id = ", org);
    if let Some(client_id) = after_client {
        page.push_with(" AND client_id > ", client_id);
    } else if skipped_rows > 0 {
        // An offset of this query would read each skipped row. The subquery reads only the index.
        page.push_with(
            " AND client_id >= (SELECT client_id FROM connections WHERE org_id = ",
            org,
        );
        page.push_with(" ORDER BY client_id LIMIT 1 OFFSET ", skipped_rows);
        page.push(")");
    }
    page.push_with(" ORDER BY client_id LIMIT ", *limit);
    page
}

/// Appends `FROM … WHERE` and the conditions of a filter that is not empty.
///
/// A subquery selects the candidates. SQLite would otherwise find the row of each index entry before it compares
/// the signature, because the table has no row ids. `CROSS JOIN` makes SQLite read the candidates first.
fn push_matches<'a>(
    query: &mut Query<'a>,
    org: &'a OrgId,
    filter: &'a ConnectionFilter,
    after_client: Option<&'a str>,
) {
    query.push_with(
        " FROM (SELECT client_id AS candidate_id FROM connections WHERE org_id = ",
        org,
    );
    if let Some(client_id) = after_client {
        query.push_with(" AND client_id > ", client_id);
    }
    query.push(" AND ");
    push_has_bits(query, signature_of_filter(filter));
    for prefix in &filter.prefixes {
        query.push(" AND (");
        push_range(query, "client_id", prefix.clone());
        query.push(" OR (");
        push_has_bits(query, signature_of_prefix(prefix));
        query.push("))");
    }
    query.push(") CROSS JOIN connections ON client_id = candidate_id WHERE true");
    push_conditions(query, filter);
}

/// Appends the condition that the signature of a client has these bits.
fn push_has_bits(query: &mut Query<'_>, bits: [i64; SIGNATURE_COLUMNS.len()]) {
    query.push("true");
    for (column, bits) in SIGNATURE_COLUMNS.into_iter().zip(bits) {
        if bits != 0 {
            query.push(" AND ").push(column).push_with(" & ", bits);
            query.push_with(" = ", bits);
        }
    }
}

/// Appends the conditions of the filter on a row.
fn push_conditions<'a>(query: &mut Query<'a>, filter: &'a ConnectionFilter) {
    let ConnectionFilter {
        dispatchers,
        tags,
        facts,
        prefixes,
        seen_after,
        seen_before,
    } = filter;
    if let Some(time) = *seen_after {
        query.push_with(concatcp!(" AND ", LAST_SEEN, " > "), time);
    }
    if let Some(time) = *seen_before {
        query.push_with(concatcp!(" AND ", LAST_SEEN, " < "), time);
    }
    for name in dispatchers {
        query.push(" AND (");
        if let Some(path) = json_path(name) {
            query.push_with("json_type(dispatchers, ", path);
            query.push(") IS NOT NULL OR ");
        }
        query.push_with(
            "EXISTS (SELECT 1 FROM json_each(dispatchers) AS entry \
             WHERE json_type(dispatchers) = 'object' AND replace(entry.key, '_', '-') = ",
            name.as_str(),
        );
        query.push("))");
    }
    for (key, value) in tags {
        query.push(" AND (");
        if let Some(path) = json_path(key) {
            query.push_with("tags -> ", path);
            let json_text = serde_json::Value::from(value.as_str()).to_string();
            query.push_with(" = ", json_text).push(" OR ");
        }
        push_exists_element(query, "tags", key);
        query.push_with(concatcp!(ELEMENT_TEXT, " = "), value.as_str());
        query.push("))");
    }
    for (key, value) in facts {
        query.push(" AND ");
        push_exists_element(query, "canonical_facts", key);
        let condition = if ConnectionFilter::is_uuid_without_dashes(value) {
            concatcp!(
                "length(",
                ELEMENT_TEXT,
                ") IN (32, 36) AND replace(lower(",
                ELEMENT_TEXT,
                "), '-', '') = "
            )
        } else {
            concatcp!("lower(", ELEMENT_TEXT, ") = ")
        };
        query.push_with(condition, value.as_str()).push(")");
    }
    for prefix in prefixes {
        query.push(" AND (");
        push_range(query, "client_id", prefix.clone());
        query.push(" OR ");
        let fqdn = "lower(canonical_facts ->> '$.fqdn')";
        push_range(query, fqdn, prefix.to_ascii_lowercase());
        query.push(")");
    }
}

/// Returns the path of a member of a JSON object. A condition on the path is faster than a condition on each
/// member, and decides for most rows that match. Returns `None` for a key that could need escapes.
fn json_path(key: &str) -> Option<String> {
    let is_simple = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/ ".contains(&byte);
    key.bytes().all(is_simple).then(|| format!("$.\"{key}\""))
}

/// Appends the condition that the text `expression` has a prefix.
fn push_range(page: &mut Query<'_>, expression: &str, prefix: String) {
    let end = ConnectionFilter::end_of_prefix_range(&prefix);
    page.push(expression).push_with(" >= ", prefix);
    page.push(" AND ").push(expression).push_with(" < ", end);
}

/// Appends `EXISTS (… WHERE … AND`. The caller must append a condition on `element` and a
/// closing parenthesis.
///
/// `element` is the value of `key`. If the value is a list, `element` is each element of the list.
/// Numbers and booleans are compared as text.
fn push_exists_element<'a>(page: &mut Query<'a>, column: &str, key: &'a str) {
    let condition = format!(
        "EXISTS (SELECT 1 FROM json_each({column}) AS entry, json_each(CASE entry.type \
         WHEN 'array' THEN entry.value WHEN 'object' THEN '[]' ELSE json_array(CASE entry.type \
         WHEN 'true' THEN 'true' WHEN 'false' THEN 'false' ELSE entry.value END) END) AS element \
         WHERE json_type({column}) = 'object' AND entry.key = "
    );
    page.push_with(&condition, key).push(" AND ");
}

/// Returns the name and the text of the queries of this module, with several filters.
pub(crate) fn example_queries() -> Vec<(&'static str, String)> {
    let mut examples = Vec::new();
    for (org, filter) in store::sql::example_filters() {
        let count = count_query(&org, &filter).sql().to_string();
        examples.push(("count_query", count));
        for start in [PageStart::Offset(0), PageStart::After(String::new())] {
            let filter = filter.clone();
            let request = PageRequest {
                filter,
                start,
                limit: 1,
            };
            let page = page_query(&org, &request).sql().to_string();
            examples.push(("page_query", page));
        }
    }
    examples
}
