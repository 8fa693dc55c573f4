//! Query parameters that filter the list of connections.

use std::collections::HashMap;

use utoipa::{IntoParams, ToSchema};

use super::invalid_request_error;
use crate::error::ApiError;
use domain::Timestamp;
use store::ConnectionFilter;

/// Names of the facts that have their own query parameter. To filter by another fact, a caller uses
/// `fact=key:value`.
const FACT_PARAMS: [&str; 8] = [
    "insights_id",
    "machine_id",
    "bios_uuid",
    "subscription_manager_id",
    "satellite_id",
    "ip_addresses",
    "mac_addresses",
    "fqdn",
];

/// Maximum number of values for one filter parameter.
const MAX_VALUES_PER_PARAM: usize = 16;

/// OpenAPI description of the filter parameters.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "only documents the parameters")]
pub(super) struct FilterParams {
    /// Lists clients that have a dispatcher with this name. Each of the parameters `dispatcher`,
    /// `tag` and `fact` may occur up to 16 times. Only clients that match all values are listed.
    #[param(max_items = 16)]
    dispatcher: Option<Vec<String>>,
    /// Lists clients that have this tag, written as `key:value`.
    #[param(inline, max_items = 16)]
    tag: Option<Vec<KeyValue>>,
    /// Lists clients that have this fact, written as `key:value`. Use this parameter for facts that
    /// have no query parameter of their own.
    #[param(inline, max_items = 16)]
    fact: Option<Vec<KeyValue>>,
    /// Lists clients whose client id or FQDN starts with this text.
    search: Option<String>,
    insights_id: Option<String>,
    machine_id: Option<String>,
    bios_uuid: Option<String>,
    subscription_manager_id: Option<String>,
    satellite_id: Option<String>,
    ip_addresses: Option<String>,
    mac_addresses: Option<String>,
    fqdn: Option<String>,
    /// Lists clients whose latest message was received after this time (RFC 3339). The stored time is at
    /// most `presence.last_seen_interval` (5 minutes) too early.
    #[param(format = DateTime)]
    seen_after: Option<String>,
    /// Lists clients whose latest message was received before this time (RFC 3339). The result can contain
    /// clients that have sent a message in the 5 minutes after this time.
    #[param(format = DateTime)]
    seen_before: Option<String>,
}

/// Key and value, separated by the first colon.
#[derive(ToSchema)]
#[schema(pattern = ":")]
#[expect(dead_code, reason = "only documents the parameters")]
struct KeyValue(String);

/// Parses the filter parameters. Ignores empty parameters and parameters that are not filters.
pub(super) fn parse_filters(params: &[(String, String)]) -> Result<ConnectionFilter, ApiError> {
    let mut filter = ConnectionFilter::default();
    let mut value_counts = HashMap::<&str, usize>::new();
    for (name, value) in params.iter().filter(|(_, value)| !value.is_empty()) {
        let count = value_counts.entry(name).or_default();
        *count += 1;
        if is_filter_param(name) && *count > MAX_VALUES_PER_PARAM {
            return Err(invalid_request_error(format!(
                "too many values for {name}; at most {MAX_VALUES_PER_PARAM} are allowed"
            )));
        }
        // PostgreSQL rejects NUL in text. No stored value contains NUL, so a filter value with NUL
        // must match nothing. Therefore each NUL is replaced with U+FFFD, which values do not
        // contain in practice.
        let value = value.replace('\0', "\u{fffd}");
        match name.as_str() {
            "dispatcher" => filter.require_dispatcher(&value),
            "tag" => {
                let (key, value) = split_key_value(name, &value)?;
                filter.require_tag(key, value);
            }
            "fact" => {
                let (key, value) = split_key_value(name, &value)?;
                filter.require_fact(key, value);
            }
            "search" => filter.require_prefix(&value),
            "seen_after" => filter.require_seen_after(parse_time(name, &value)?),
            "seen_before" => filter.require_seen_before(parse_time(name, &value)?),
            fact if FACT_PARAMS.contains(&fact) => filter.require_fact(fact, &value),
            _ => {}
        }
    }
    Ok(filter)
}

fn is_filter_param(name: &str) -> bool {
    matches!(
        name,
        "dispatcher" | "tag" | "fact" | "search" | "seen_after" | "seen_before"
    ) || FACT_PARAMS.contains(&name)
}

/// Parses a time in the format of RFC 3339. Accepts a space in place of `+`, because a `+` in a query string
/// that is not percent-encoded is a space.
fn parse_time(param_name: &str, text: &str) -> Result<Timestamp, ApiError> {
    let time = text.replace(' ', "+").parse::<Timestamp>();
    // PostgreSQL stores no earlier time, and no client was seen before.
    let time = time.ok().map(|time| time.max(Timestamp::UNIX_EPOCH));
    time.ok_or_else(|| {
        invalid_request_error(format!(
            "{param_name} must be a time in the format of RFC 3339, such as 2026-01-02T15:04:05Z"
        ))
    })
}

/// Splits `key:value` at the first colon. `param_name` is the name of the query parameter, for the
/// error message.
fn split_key_value<'a>(param_name: &str, text: &'a str) -> Result<(&'a str, &'a str), ApiError> {
    text.split_once(':')
        .ok_or_else(|| invalid_request_error(format!("{param_name} must have the form key:value")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(params: &[(&str, &str)]) -> Result<ConnectionFilter, ApiError> {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        parse_filters(&params.iter().map(owned).collect::<Vec<_>>())
    }

    #[test]
    fn empty_and_unknown_parameters_are_ignored() {
        let params = [("limit", "5"), ("fqdn", ""), ("tag", ""), ("other", "x")];
        assert!(parse(&params).unwrap().is_empty());
    }

    #[test]
    fn a_parameter_may_have_up_to_16_values_and_all_values_become_filters() {
        let mut expected = ConnectionFilter::default();
        expected.require_tag("a", "1:2");
        expected.require_tag("b", "");
        expected.require_fact("fqdn", "Host");
        expected.require_fact("rack", "7");
        let params = [
            ("tag", "a:1:2"),
            ("tag", "b:"),
            ("fqdn", "host"),
            ("fact", "rack:7"),
        ];
        assert_eq!(parse(&params).unwrap(), expected);
        assert!(parse(&[("tag", "a:b"); 16]).is_ok());
        assert!(parse(&[("tag", "a:b"); 17]).is_err());
        assert!(parse(&[("tag", "no colon")]).is_err());
    }

    #[test]
    fn times_have_the_format_of_rfc_3339() {
        let time = |second| Timestamp::from_second(second).unwrap();
        let params = [
            ("seen_after", "1970-01-01T00:00:05Z"),
            ("seen_after", "1970-01-01T00:00:04.5Z"),
            ("seen_before", "1970-01-01T01:00:07 01:00"),
            ("seen_before", "1970-01-01T00:00:08Z"),
        ];
        let filter = parse(&params).unwrap();
        assert_eq!(filter.seen_after, Some(time(5)));
        assert_eq!(filter.seen_before, Some(time(7)));
        assert!(!filter.is_empty());
        let before_the_epoch = parse(&[("seen_after", "-009999-01-02T01:59:59Z")]).unwrap();
        assert_eq!(before_the_epoch.seen_after, Some(time(0)));
        for invalid in [
            "yesterday",
            "2026-01-02",
            "1767366245",
            "2026-01-02T15:04:05",
        ] {
            for name in ["seen_after", "seen_before"] {
                let error = parse(&[(name, invalid)]).unwrap_err();
                let error = serde_json::to_value(&error).unwrap();
                assert!(
                    error["detail"].as_str().unwrap().starts_with(name),
                    "{error}"
                );
            }
        }
    }
}
