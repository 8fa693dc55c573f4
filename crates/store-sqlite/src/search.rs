//! Queries for the connections of one organization, with or without a filter.
//!
//! Filters are evaluated for each row of the organization, in the order of the client ids. The
//! SQLite schema has no search index, because the index would cost more time for each recorded
//! message than it would save for each query.

use const_format::concatcp;

use domain::OrgId;
use store::sql::{CONNECTION_COLUMNS, Query};
use store::{ConnectionFilter, MAX_FILTERED_COUNT, PageRequest, PageStart};

/// SQL expression that converts the JSON value `element` to text.
const ELEMENT_TEXT: &str = "CASE element.type WHEN 'true' THEN 'true' WHEN 'false' THEN 'false' \
     ELSE CAST(element.value AS TEXT) END";

pub(crate) fn count_query<'a>(org: &'a OrgId, filter: &'a ConnectionFilter) -> Query<'a> {
    if filter.is_empty() {
        let mut count = Query::dynamic("SELECT count(*) AS count");
        push_from_and_where(&mut count, org, filter);
        return count;
    }
    let mut count = Query::dynamic("SELECT count(*) AS count FROM (SELECT 1");
    push_from_and_where(&mut count, org, filter);
    count.push_with(" LIMIT ", MAX_FILTERED_COUNT + 1).push(")");
    count
}

pub(crate) fn page_query<'a>(org: &'a OrgId, request: &'a PageRequest) -> Query<'a> {
    let mut page = Query::dynamic(concatcp!("SELECT ", CONNECTION_COLUMNS));
    push_from_and_where(&mut page, org, &request.filter);
    let mut skipped_rows = 0;
    match &request.start {
        PageStart::Offset(offset) => skipped_rows = *offset,
        PageStart::After(client_id) => {
            page.push_with(" AND client_id > ", client_id.as_str());
        }
    }
    page.push_with(" ORDER BY client_id LIMIT ", request.limit);
    page.push_with(" OFFSET ", skipped_rows);
    page
}

/// Appends `FROM connections WHERE`, the condition on the organization and the conditions of the
/// filter.
fn push_from_and_where<'a>(page: &mut Query<'a>, org: &'a OrgId, filter: &'a ConnectionFilter) {
    let ConnectionFilter {
        dispatchers,
        tags,
        facts,
        prefixes,
    } = filter;
    page.push_with(" FROM connections WHERE org_id = ", org);
    for name in dispatchers {
        page.push_with(
            " AND EXISTS (SELECT 1 FROM json_each(dispatchers) AS entry \
             WHERE json_type(dispatchers) = 'object' AND replace(entry.key, '_', '-') = ",
            name.as_str(),
        );
        page.push(")");
    }
    for (key, value) in tags {
        push_exists_element(page, "tags", key);
        page.push_with(concatcp!(ELEMENT_TEXT, " = "), value.as_str());
        page.push(")");
    }
    for (key, value) in facts {
        push_exists_element(page, "canonical_facts", key);
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
        page.push_with(condition, value.as_str()).push(")");
    }
    for prefix in prefixes {
        page.push(" AND (");
        push_range(page, "client_id", prefix.clone());
        page.push(" OR ");
        let fqdn = "lower(canonical_facts ->> '$.fqdn')";
        push_range(page, fqdn, prefix.to_ascii_lowercase());
        page.push(")");
    }
}

/// Appends the condition that the text `expression` has a prefix.
fn push_range(page: &mut Query<'_>, expression: &str, prefix: String) {
    let end = ConnectionFilter::end_of_prefix_range(&prefix);
    page.push(expression).push_with(" >= ", prefix);
    page.push(" AND ").push(expression).push_with(" < ", end);
}

/// Appends `AND EXISTS (… WHERE … AND`. The caller must append a condition on `element` and a
/// closing parenthesis.
///
/// `element` is the value of `key`. If the value is a list, `element` is each element of the list.
/// Numbers and booleans are compared as text.
fn push_exists_element<'a>(page: &mut Query<'a>, column: &str, key: &'a str) {
    let condition = format!(
        " AND EXISTS (SELECT 1 FROM json_each({column}) AS entry, json_each(CASE entry.type \
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
