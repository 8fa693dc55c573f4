//! Query parameters of the event stream.

use std::collections::BTreeSet;

use domain::connection::normalize_dispatcher;
use domain::event::EVENT_TYPES;

use super::super::invalid_request_error;
use super::rendered::RenderedEvent;
use crate::error::ApiError;

/// Maximum number of values of one filter.
const MAX_VALUES: usize = 64;

const PARAM_NAMES: [&str; 4] = ["type", "client_id", "dispatcher", "last_event_id"];

/// Selects the events of a stream. An empty set selects all events.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct EventFilter {
    types: BTreeSet<String>,
    client_ids: BTreeSet<String>,
    /// Normalized names.
    dispatchers: BTreeSet<String>,
}

impl EventFilter {
    /// Returns whether the event has one of the values of each filter.
    pub fn matches(&self, event: &RenderedEvent) -> bool {
        let is_selected =
            |values: &BTreeSet<String>, value: &str| values.is_empty() || values.contains(value);
        is_selected(&self.types, &event.event_type)
            && is_selected(&self.client_ids, event.client_id.as_str())
            && (self.dispatchers.is_empty()
                || event
                    .dispatchers
                    .iter()
                    .any(|name| self.dispatchers.contains(name)))
    }
}

/// Parses the query parameters. Returns the filter, and the id after which the stream starts. Ignores
/// empty values.
pub(super) fn parse_params(
    params: &[(String, String)],
) -> Result<(EventFilter, Option<String>), ApiError> {
    let mut unknown_names: Vec<&str> = params
        .iter()
        .map(|(name, _)| name.as_str())
        .filter(|name| !PARAM_NAMES.contains(name))
        .collect();
    if !unknown_names.is_empty() {
        unknown_names.sort_unstable();
        unknown_names.dedup();
        return Err(invalid_request_error(format!(
            "unknown query parameters: {}; allowed are {}",
            unknown_names.join(", "),
            PARAM_NAMES.join(", ")
        )));
    }
    let mut filter = EventFilter::default();
    let mut last_event_id = None;
    for (name, text) in params.iter().filter(|(_, text)| !text.is_empty()) {
        let values = text.split(',').map(str::trim).filter(|it| !it.is_empty());
        match name.as_str() {
            "type" => filter.types.extend(values.map(str::to_owned)),
            "client_id" => {
                filter.client_ids.extend(values.map(str::to_owned));
                // A client id can contain a comma.
                filter.client_ids.insert(text.clone());
            }
            "dispatcher" => filter.dispatchers.extend(values.map(normalize_dispatcher)),
            _ => last_event_id = Some(text.clone()),
        }
    }
    check_types(&filter.types)?;
    for (name, values) in [
        ("type", &filter.types),
        ("client_id", &filter.client_ids),
        ("dispatcher", &filter.dispatchers),
    ] {
        if values.len() > MAX_VALUES {
            return Err(invalid_request_error(format!(
                "too many values for {name}; at most {MAX_VALUES} are allowed"
            )));
        }
    }
    Ok((filter, last_event_id))
}

fn check_types(types: &BTreeSet<String>) -> Result<(), ApiError> {
    let is_unknown = |name: &&String| EVENT_TYPES.iter().all(|it| it.name != name.as_str());
    let Some(unknown) = types.iter().find(is_unknown) else {
        return Ok(());
    };
    let known: Vec<&str> = EVENT_TYPES.iter().map(|it| it.name).collect();
    Err(invalid_request_error(format!(
        "unknown event type {unknown:?}; the types are {}",
        known.join(", ")
    )))
}

#[cfg(test)]
mod tests {
    use domain::Timestamp;
    use serde_json::json;
    use store::StoredEvent;

    use super::*;

    fn parse(query: &[(&str, &str)]) -> Result<(EventFilter, Option<String>), String> {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let params: Vec<(String, String)> = query.iter().map(owned).collect();
        parse_params(&params).map_err(|error| format!("{error:?}"))
    }

    fn updated_event() -> RenderedEvent {
        RenderedEvent::from(StoredEvent {
            position: 1,
            at: Timestamp::UNIX_EPOCH,
            event_type: "connection.updated".to_owned(),
            tenant: domain::Tenant {
                org_id: domain::OrgId::new("1").unwrap(),
                account: String::new(),
            },
            client_id: domain::ClientId::new("client-1").unwrap(),
            data: json!({"dispatchers": {"rhc_worker_new": {}}}),
            previous_dispatchers: Some(json!({"rhc-worker-old": {}})),
        })
    }

    fn matches(query: &[(&str, &str)]) -> bool {
        parse(query).unwrap().0.matches(&updated_event())
    }

    #[test]
    fn update_matches_its_old_and_new_dispatchers_with_dash_or_underscore() {
        for name in ["rhc-worker-new", "rhc_worker_new", "rhc_worker_old"] {
            assert!(matches(&[("dispatcher", name)]), "{name}");
        }
        assert!(!matches(&[("dispatcher", "rhc")]));
    }

    #[test]
    fn values_of_one_filter_are_alternatives_and_all_filters_must_match() {
        assert!(matches(&[]));
        assert!(matches(&[("type", ""), ("client_id", "x,client-1")]));
        assert!(matches(&[("client_id", "x"), ("client_id", "client-1")]));
        let types = "connection.online, connection.updated";
        assert!(matches(&[("type", types), ("client_id", "client-1")]));
        assert!(!matches(&[("type", types), ("client_id", "x")]));
        assert!(!matches(&[("type", "connection.offline")]));
    }

    #[test]
    fn client_id_with_a_comma_can_be_selected() {
        let (filter, _) = parse(&[("client_id", "a,b")]).unwrap();
        assert!(filter.client_ids.contains("a,b"));
    }

    #[test]
    fn unknown_parameters_and_types_are_named() {
        let error = parse(&[("offset", "1"), ("types", "x"), ("type", "")]).unwrap_err();
        assert!(error.contains("parameters: offset, types;"), "{error}");
        let error = parse(&[("type", "connection.new")]).unwrap_err();
        assert!(error.contains("connection.new"), "{error}");
        let many: Vec<String> = (0..65).map(|n| n.to_string()).collect();
        assert!(parse(&[("dispatcher", &many.join(","))]).is_err());
    }

    #[test]
    fn last_event_id_is_returned_as_text() {
        let (_, id) = parse(&[("last_event_id", "abc")]).unwrap();
        assert_eq!(id.as_deref(), Some("abc"));
        assert_eq!(parse(&[("last_event_id", "")]).unwrap().1, None);
    }
}
