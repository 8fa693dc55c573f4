//! Query parameters that filter the list of connections.

use std::collections::HashMap;

use utoipa::{IntoParams, ToSchema};

use super::invalid_request_error;
use crate::error::ApiError;
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
            fact if FACT_PARAMS.contains(&fact) => filter.require_fact(fact, &value),
            _ => {}
        }
    }
    Ok(filter)
}

fn is_filter_param(name: &str) -> bool {
    matches!(name, "dispatcher" | "tag" | "fact" | "search") || FACT_PARAMS.contains(&name)
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
}
