//! The filters of a list, as they stand in a query.

use std::collections::HashMap;

use axum::http::StatusCode;
use utoipa::{IntoParams, ToSchema};

use crate::api::error::ApiError;
use crate::store::Filter;

/// Facts that have a parameter of their own; any other is asked for with `fact=key:value`.
const FACTS: [&str; 8] = [
    "insights_id",
    "machine_id",
    "bios_uuid",
    "subscription_manager_id",
    "satellite_id",
    "ip_addresses",
    "mac_addresses",
    "fqdn",
];

/// Most conditions of one kind in one request.
const CONDITIONS_MOST: usize = 16;

/// What the document says of them.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "describes; it is read as text")]
pub(super) struct FilterParams {
    /// Has a dispatcher of this name. May be repeated, as `tag` and `fact` may; all must be met, 16 at
    /// most.
    #[param(max_items = 16)]
    dispatcher: Option<Vec<String>>,
    /// Has this tag: `key:value`.
    #[param(inline, max_items = 16)]
    tag: Option<Vec<Pair>>,
    /// Has this fact: `key:value`, for those that have no parameter of their own.
    #[param(inline, max_items = 16)]
    fact: Option<Vec<Pair>>,
    /// The client id or the FQDN begins so.
    search: Option<String>,
    insights_id: Option<String>,
    machine_id: Option<String>,
    bios_uuid: Option<String>,
    subscription_manager_id: Option<String>,
    satellite_id: Option<String>,
    ip_addresses: Option<String>,
    mac_addresses: Option<String>,
    fqdn: Option<String>,
}

/// A key and a value; the key ends at the first colon.
#[derive(ToSchema)]
#[schema(pattern = ":")]
#[expect(dead_code, reason = "describes; it is read as text")]
struct Pair(String);

/// Reads the filters of a query. An empty one asks for nothing; all others must be met.
pub(super) fn read(query: &[(String, String)]) -> Result<Filter, ApiError> {
    let mut filter = Filter::default();
    let mut counts = HashMap::<&str, usize>::new();
    for (name, value) in query.iter().filter(|(_, value)| !value.is_empty()) {
        let count = counts.entry(name).or_default();
        *count += 1;
        if is_condition(name) && *count > CONDITIONS_MOST {
            return Err(invalid(format!(
                "a list takes {CONDITIONS_MOST} conditions of one kind, and {name} is given more often"
            )));
        }
        // No client has it in anything that it says.
        let value = value.replace('\0', "\u{fffd}");
        match name.as_str() {
            "dispatcher" => filter.dispatcher(&value),
            "tag" => {
                let (key, value) = pair(name, &value)?;
                filter.tag(key, value);
            }
            "fact" => {
                let (key, value) = pair(name, &value)?;
                filter.fact(key, value);
            }
            "search" => filter.beginning(&value),
            fact if FACTS.contains(&fact) => filter.fact(fact, &value),
            _ => {}
        }
    }
    Ok(filter)
}

fn is_condition(name: &str) -> bool {
    matches!(name, "dispatcher" | "tag" | "fact" | "search") || FACTS.contains(&name)
}

/// The key ends at the first colon.
fn pair<'a>(name: &str, value: &'a str) -> Result<(&'a str, &'a str), ApiError> {
    value
        .split_once(':')
        .ok_or_else(|| invalid(format!("{name} must be key:value")))
}

fn invalid(detail: String) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, "InvalidValue request", detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_pairs(pairs: &[(&str, &str)]) -> Result<Filter, ApiError> {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        read(&pairs.iter().map(owned).collect::<Vec<_>>())
    }

    #[test]
    fn what_is_empty_or_no_filter_asks_for_nothing() {
        let none = [("limit", "5"), ("fqdn", ""), ("tag", ""), ("other", "x")];
        assert!(read_pairs(&none).unwrap().is_empty());
    }

    #[test]
    fn conditions_are_all_taken_up_to_a_number() {
        let mut expected = Filter::default();
        expected.tag("a", "1:2");
        expected.tag("b", "");
        expected.fact("fqdn", "Host");
        expected.fact("rack", "7");
        let given = [
            ("tag", "a:1:2"),
            ("tag", "b:"),
            ("fqdn", "host"),
            ("fact", "rack:7"),
        ];
        assert_eq!(read_pairs(&given).unwrap(), expected);
        assert!(read_pairs(&[("tag", "a:b"); 16]).is_ok());
        assert!(read_pairs(&[("tag", "a:b"); 17]).is_err());
        assert!(read_pairs(&[("tag", "no colon")]).is_err());
    }
}
