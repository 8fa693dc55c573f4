//! Announcing hosts to inventory: which connections, and in what words.
//!
//! Inventory refuses a whole host for one fact that it does not like, and nobody is told. So what it
//! would refuse is left out here, and a host that it would refuse anyway is not sent.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use uuid::Uuid;

use super::facts::{self, Facts, is_dashed_uuid};
use crate::domain::identity::CERT_AUTH;
use crate::domain::{ClientId, ClientInfo, ClientKind, Dialect, Identity, Tenant, Timestamp};

/// Clients with one of these workers are hosts in inventory's sense.
const DISPATCHERS: [&str; 3] = [
    "rhc-worker-playbook",
    "package-manager",
    "rhc-worker-script",
];
const REPORTER: &str = "cloud-connector";
/// Longest organisation that inventory takes, in characters.
const ORG_ID_MAX_CHARS: usize = 36;
/// Longest account number that inventory takes, in characters.
const ACCOUNT_MAX_CHARS: usize = 10;
/// Longest key and longest value of a tag, in characters.
const TAG_MAX_CHARS: usize = 255;

/// A connection that inventory may want to know of.
#[derive(Debug, Clone, Copy)]
pub struct Host<'a> {
    /// Who.
    pub client_id: &'a ClientId,
    /// To whom it belongs.
    pub tenant: &'a Tenant,
    /// The identity that was found with this tenant.
    pub identity: &'a Identity,
    /// How it speaks.
    pub dialect: Dialect,
    /// What it is.
    pub kind: ClientKind,
    /// What it said of itself.
    pub reported: &'a ClientInfo,
}

/// What the configuration says of announcing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReportPolicy {
    /// How long after this word inventory takes a host for stale.
    pub stale_after: Duration,
    /// Whether handshake-dialect hosts, which have no dispatchers, are announced.
    pub include_handshake_hosts: bool,
}

/// A message for inventory's topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InventoryMessage {
    /// The organisation: what it says of one organisation, inventory reads in order.
    pub key: String,
    /// JSON.
    pub value: Vec<u8>,
}

/// Why a connection is not announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum NotEligible {
    /// It speaks for others.
    #[error("it is not a host")]
    NotAHost,
    /// It has no worker that makes it a host.
    #[error("it has none of the dispatchers that inventory wants to know of")]
    NoDispatcher,
    /// It speaks the handshake dialect, and the setting for these is off.
    #[error("hosts of the handshake dialect are not announced")]
    HandshakeHostsOff,
    /// It reported no facts.
    #[error("it reported no canonical facts")]
    NoFacts,
    /// It reported facts, but none that inventory could tell it by.
    #[error("it has no insights_id, subscription_manager_id or provider_id that inventory accepts")]
    NoAcceptedId,
    /// Tenant and identity do not belong together.
    #[error("the identity is of another organisation")]
    OtherOrganisation,
    /// The organisation's name is longer than inventory takes.
    #[error("the organisation is over {ORG_ID_MAX_CHARS} characters")]
    OrganisationTooLong,
}

impl NotEligible {
    /// Its name as a metric's label.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::NotAHost => "not_a_host",
            Self::NoDispatcher => "no_dispatcher",
            Self::HandshakeHostsOff => "handshake_hosts_off",
            Self::NoFacts => "no_facts",
            Self::NoAcceptedId => "no_accepted_id",
            Self::OtherOrganisation => "other_organisation",
            Self::OrganisationTooLong => "organisation_too_long",
        }
    }

    /// Whether inventory should know of it, but would refuse it as it is: to be counted, logged once
    /// per client, and not owed, because the same again would be refused again. Otherwise it does
    /// not concern inventory, and there is nothing to tell anybody.
    #[must_use]
    pub fn is_refusal(self) -> bool {
        match self {
            Self::NotAHost | Self::NoDispatcher | Self::HandshakeHostsOff | Self::NoFacts => false,
            Self::NoAcceptedId | Self::OtherOrganisation | Self::OrganisationTooLong => true,
        }
    }
}

/// The message that tells inventory of this host.
///
/// # Errors
/// When there is nothing to tell, or inventory would refuse it.
pub fn announcement(
    host: &Host<'_>,
    now: Timestamp,
    terms: ReportPolicy,
    request_id: Uuid,
) -> Result<InventoryMessage, NotEligible> {
    let facts = facts_to_announce(
        host.dialect,
        host.kind,
        host.reported,
        terms.include_handshake_hosts,
    )?;
    let Tenant { org_id, account } = host.tenant;
    if host.identity.tenant().map(|named| &named.org_id) != Some(org_id) {
        return Err(NotEligible::OtherOrganisation);
    }
    if is_over(org_id.as_str(), ORG_ID_MAX_CHARS) {
        return Err(NotEligible::OrganisationTooLong);
    }
    let message = Message {
        operation: "add_host",
        platform_metadata: Metadata {
            request_id,
            b64_identity: host.identity.to_base64(),
        },
        data: Data {
            facts,
            account: Some(account.as_str())
                .filter(|account| !account.is_empty() && !is_over(account, ACCOUNT_MAX_CHARS)),
            org_id: org_id.as_str(),
            stale_timestamp: now
                .saturating_add(terms.stale_after)
                .unwrap_or(Timestamp::MAX),
            reporter: REPORTER,
            system_profile: system_profile(host.client_id, host.identity),
            tags: tags(&host.reported.tags),
        },
    };
    Ok(InventoryMessage {
        key: org_id.as_str().to_owned(),
        // Serialising strings and a moment into memory has nothing to fail at.
        value: serde_json::to_vec(&message).unwrap_or_default(),
    })
}

/// Whether inventory would take this connection, given a tenant: what makes it due for announcing.
#[must_use]
pub fn inventory_eligible(
    dialect: Dialect,
    kind: ClientKind,
    reported: &ClientInfo,
    include_handshake_hosts: bool,
) -> bool {
    facts_to_announce(dialect, kind, reported, include_handshake_hosts).is_ok()
}

/// First whether it concerns inventory, then whether inventory would take it: a reason that is no
/// refusal must not hide behind one that is.
fn facts_to_announce(
    dialect: Dialect,
    kind: ClientKind,
    reported: &ClientInfo,
    include_handshake_hosts: bool,
) -> Result<Facts<'_>, NotEligible> {
    if kind != ClientKind::Host {
        return Err(NotEligible::NotAHost);
    }
    let has_dispatcher = DISPATCHERS.iter().any(|name| reported.has_dispatcher(name));
    match dialect {
        _ if has_dispatcher => {}
        Dialect::Handshake if include_handshake_hosts => {}
        Dialect::Handshake => return Err(NotEligible::HandshakeHostsOff),
        Dialect::Status => return Err(NotEligible::NoDispatcher),
    }
    if !facts::are_reported(&reported.canonical_facts) {
        return Err(NotEligible::NoFacts);
    }
    let facts = Facts::accepted(&reported.canonical_facts);
    if facts.have_id() {
        Ok(facts)
    } else {
        Err(NotEligible::NoAcceptedId)
    }
}

/// Inventory knows three keys at the top and refuses a message with any other.
#[derive(Serialize)]
struct Message<'a> {
    operation: &'static str,
    platform_metadata: Metadata<'a>,
    data: Data<'a>,
}

#[derive(Serialize)]
struct Metadata<'a> {
    request_id: Uuid,
    b64_identity: &'a str,
}

/// What is not there is left out: null and empty values are among what inventory refuses.
#[derive(Serialize)]
struct Data<'a> {
    #[serde(flatten)]
    facts: Facts<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    account: Option<&'a str>,
    org_id: &'a str,
    stale_timestamp: Timestamp,
    reporter: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    system_profile: Option<SystemProfile<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tags: Option<Tags<'a>>,
}

#[derive(Serialize)]
struct SystemProfile<'a> {
    rhc_client_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner_id: Option<&'a str>,
}

#[derive(Serialize)]
struct Tags<'a> {
    rhc_client: BTreeMap<&'a str, [&'a str; 1]>,
}

/// The client's id, where it is of the only form that inventory takes for one.
///
/// Who came with a certificate owns the host. But inventory takes the certificate's name of a
/// `System` for its owner, and refuses the host if we name another.
fn system_profile<'a>(client_id: &'a ClientId, identity: &Identity) -> Option<SystemProfile<'a>> {
    let id = client_id.as_str();
    if !is_dashed_uuid(id) || id.contains(|c: char| c.is_ascii_uppercase()) {
        return None;
    }
    let is_owner = identity.auth_type() == CERT_AUTH
        && (identity.kind() != Some("System") || identity.system_cn() == Some(id));
    Some(SystemProfile {
        rhc_client_id: id,
        owner_id: is_owner.then_some(id),
    })
}

/// None when nothing is left: an empty namespace tells inventory to forget the tags that it has.
fn tags(reported: &Value) -> Option<Tags<'_>> {
    let rhc_client: BTreeMap<_, _> = reported
        .as_object()?
        .iter()
        .filter(|(key, _)| !key.is_empty() && !is_over(key, TAG_MAX_CHARS))
        .filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)))
        .filter(|(_, value)| !is_over(value, TAG_MAX_CHARS))
        .map(|(key, value)| (key, [value]))
        .collect();
    (!rhc_client.is_empty()).then_some(Tags { rhc_client })
}

pub(super) fn is_over(text: &str, chars: usize) -> bool {
    text.chars().nth(chars).is_some()
}
