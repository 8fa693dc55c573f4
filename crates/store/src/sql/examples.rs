//! Queries for the tests that prepare every statement of a backend.

use domain::{ClientId, MessageId, MessageState, OrgId, RejectReason, Timestamp};

use super::statements::SharedStatements;
use super::{clients, dead_letters, messages};
use crate::dead_letters::DeadLetterFilter;
use crate::messages::MessageFilter;
use crate::page::ConnectionFilter;

/// Returns the name and the text of the shared statements, of the lists `own_statements` of a
/// backend, and of the queries for dead letters with each combination of conditions.
#[must_use]
pub fn texts(
    shared_statements: &SharedStatements,
    own_statements: &[&[(&'static str, &'static str)]],
) -> Vec<(&'static str, String)> {
    let mut texts: Vec<(&str, String)> = shared_statements
        .list()
        .into_iter()
        .chain(clients::STATEMENTS.iter().copied())
        .chain(own_statements.concat())
        .map(|(name, sql)| (name, sql.to_owned()))
        .collect();
    for conditions in 0..16 {
        let has_condition = |bit: u32| conditions & (1 << bit) != 0;
        let filter = DeadLetterFilter {
            client: ClientId::new("example").ok().filter(|_| has_condition(0)),
            reason: has_condition(1).then_some(RejectReason::InvalidJson),
            received_before: has_condition(2).then_some(Timestamp::UNIX_EPOCH),
            replay_requested: has_condition(3),
        };
        let (list, purge) = (
            dead_letters::list_query(&filter, 1),
            dead_letters::purge_query(&filter, 1),
        );
        texts.push(("list_query", list.sql().to_string()));
        texts.push(("purge_query", purge.sql().to_string()));
    }
    texts.extend(message_queries());
    texts
}

/// Returns the queries for messages with each combination of conditions.
fn message_queries() -> Vec<(&'static str, String)> {
    let (Ok(org), Ok(id)) = (OrgId::new("example"), MessageId::new("example")) else {
        return Vec::new();
    };
    let mut texts = Vec::new();
    for conditions in 0..32 {
        let has_condition = |bit: u32| conditions & (1 << bit) != 0;
        let filter = MessageFilter {
            client_id: ClientId::new("example").ok().filter(|_| has_condition(0)),
            state: has_condition(1).then_some(MessageState::Sending),
            directive: has_condition(2).then(|| "example".to_owned()),
            created_after: has_condition(3).then_some(Timestamp::UNIX_EPOCH),
        };
        let after = has_condition(4).then_some(&id);
        let list = messages::list_messages_query(&org, &filter, after, 1);
        texts.push(("list_messages_query", list.sql().to_string()));
        let last = messages::last_examined_query(&org, &filter, after);
        texts.push(("last_examined_query", last.sql().to_string()));
    }
    texts
}

/// Returns filters that use each condition alone and all conditions together, with an organization.
#[must_use]
pub fn example_filters() -> Vec<(OrgId, ConnectionFilter)> {
    let conditions: [fn(&mut ConnectionFilter); 7] = [
        |filter| filter.require_dispatcher("echo"),
        |filter| filter.require_tag("region", "us1"),
        |filter| filter.require_fact("fqdn", "host.example.com"),
        |filter| filter.require_fact("insights_id", "0a5d2b9e516347ee9e573bb6d90bdfff"),
        |filter| filter.require_prefix("web"),
        |filter| filter.require_seen_after(Timestamp::UNIX_EPOCH),
        |filter| filter.require_seen_before(Timestamp::UNIX_EPOCH),
    ];
    let mut all_conditions = ConnectionFilter::default();
    let mut filters = vec![ConnectionFilter::default()];
    for require in conditions {
        let mut filter = ConnectionFilter::default();
        require(&mut filter);
        filters.push(filter);
        // Each condition is required twice, because a filter can contain several values.
        require(&mut all_conditions);
        require(&mut all_conditions);
    }
    filters.push(all_conditions);
    let org = OrgId::new("1").ok();
    org.map_or_else(Vec::new, |org| {
        let with_org = filters.into_iter().map(|filter| (org.clone(), filter));
        with_org.collect()
    })
}
