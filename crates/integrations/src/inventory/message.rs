//! Builds the inventory message of a host, and decides which hosts are eligible.
//!
//! Inventory silently rejects a whole host because of one invalid fact. This module therefore omits
//! invalid facts, and does not send a host that inventory would still reject.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use uuid::Uuid;

use super::facts::{self, Facts, is_dashed_uuid};
use domain::identity::CERT_AUTH;
use domain::{ClientId, ClientInfo, ClientKind, DialectName, Identity, Tenant, Timestamp};

/// A client whose dialect reports dispatchers is eligible only if it has at least one of these
/// dispatchers.
const HOST_DISPATCHERS: [&str; 3] = [
    "rhc-worker-playbook",
    "package-manager",
    "rhc-worker-script",
];
const REPORTER_NAME: &str = "cloud-connector";
/// Maximum length of an organization id in inventory.
const MAX_ORG_ID_CHARS: usize = 36;
/// Maximum length of an account number in inventory.
const MAX_ACCOUNT_CHARS: usize = 10;
/// Maximum length of a tag key and of a tag value in inventory.
const MAX_TAG_CHARS: usize = 255;

/// A connection that is reported to inventory if the connection is eligible.
#[derive(Debug, Clone, Copy)]
pub struct Host<'a> {
    /// The client's id.
    pub client_id: &'a ClientId,
    /// The client's organization and account number.
    pub tenant: &'a Tenant,
    /// The identity document that the tenant lookup returned together with the tenant.
    pub identity: &'a Identity,
    /// The client's protocol dialect.
    pub dialect: &'a DialectName,
    /// Whether the client is a host or a proxy. Only hosts are eligible.
    pub kind: ClientKind,
    /// Facts, dispatchers and tags that the client sent.
    pub info: &'a ClientInfo,
}

/// Settings of the `[inventory]` section that affect messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReportPolicy {
    /// Inventory marks a host stale if it receives no message about the host for this time.
    pub stale_after: Duration,
    /// Whether hosts are reported whose dialect reports no dispatchers. The handshake dialect is
    /// such a dialect.
    pub include_handshake_hosts: bool,
}

/// A message for inventory's Kafka topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InventoryMessage {
    /// Kafka key of the message: the organization id. Kafka keeps the order of messages with the
    /// same key.
    pub kafka_key: String,
    /// Kafka value of the message: a JSON document.
    pub json: Vec<u8>,
}

/// Why a connection is not reported to inventory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum IneligibleReason {
    /// The client is a proxy.
    #[error("the client is not a host")]
    NotAHost,
    /// The client has none of the required dispatchers.
    #[error("the client has none of the dispatchers that inventory requires")]
    NoDispatcher,
    /// The client's dialect reports no dispatchers and `inventory.include_handshake_hosts` is false.
    #[error("inventory.include_handshake_hosts is false")]
    HandshakeHostsOff,
    /// The client sent no facts.
    #[error("the client sent no canonical facts")]
    NoFacts,
    /// The client sent facts, but no fact that identifies a host.
    #[error("the client sent no valid insights_id, subscription_manager_id or provider_id")]
    NoAcceptedId,
    /// The identity document and the tenant have different organizations.
    #[error("the identity belongs to another organization")]
    OtherOrganization,
    /// The organization id is longer than inventory accepts.
    #[error("the organization id is longer than {MAX_ORG_ID_CHARS} characters")]
    OrgIdTooLong,
}

impl IneligibleReason {
    /// Returns the metric label of this reason.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotAHost => "not_a_host",
            Self::NoDispatcher => "no_dispatcher",
            Self::HandshakeHostsOff => "handshake_hosts_off",
            Self::NoFacts => "no_facts",
            Self::NoAcceptedId => "no_accepted_id",
            Self::OtherOrganization => "other_organization",
            Self::OrgIdTooLong => "org_id_too_long",
        }
    }

    /// Returns true if the client belongs in inventory, but inventory would reject its data. A
    /// metric counts such clients. Returns false if the client does not belong in inventory.
    #[must_use]
    pub fn would_be_rejected(self) -> bool {
        match self {
            Self::NotAHost | Self::NoDispatcher | Self::HandshakeHostsOff | Self::NoFacts => false,
            Self::NoAcceptedId | Self::OtherOrganization | Self::OrgIdTooLong => true,
        }
    }
}

/// Builds the inventory message of a host.
///
/// # Errors
/// If the host is not eligible.
pub fn build_message(
    host: &Host<'_>,
    now: Timestamp,
    policy: ReportPolicy,
    request_id: Uuid,
) -> Result<InventoryMessage, IneligibleReason> {
    let facts = eligible_facts(
        host.dialect,
        host.kind,
        host.info,
        policy.include_handshake_hosts,
    )?;
    let Tenant { org_id, account } = host.tenant;
    if host.identity.tenant().map(|tenant| &tenant.org_id) != Some(org_id) {
        return Err(IneligibleReason::OtherOrganization);
    }
    if is_longer_than(org_id.as_str(), MAX_ORG_ID_CHARS) {
        return Err(IneligibleReason::OrgIdTooLong);
    }
    let message = AddHostMessage {
        operation: "add_host",
        platform_metadata: PlatformMetadata {
            request_id,
            b64_identity: host.identity.to_base64(),
        },
        data: HostData {
            facts,
            account: Some(account.as_str())
                .filter(|account| !account.is_empty())
                .filter(|account| !is_longer_than(account, MAX_ACCOUNT_CHARS)),
            org_id: org_id.as_str(),
            stale_timestamp: now
                .saturating_add(policy.stale_after)
                .unwrap_or(Timestamp::MAX),
            reporter: REPORTER_NAME,
            system_profile: system_profile(host.client_id, host.identity),
            tags: accepted_tags(&host.info.tags),
        },
    };
    Ok(InventoryMessage {
        kafka_key: org_id.as_str().to_owned(),
        // Serializing strings and a timestamp to memory cannot fail.
        json: serde_json::to_vec(&message).unwrap_or_default(),
    })
}

/// Returns whether inventory accepts a client with these properties. Does not check the tenant of
/// the client.
#[must_use]
pub fn is_inventory_eligible(
    dialect: &DialectName,
    kind: ClientKind,
    info: &ClientInfo,
    include_handshake_hosts: bool,
) -> bool {
    eligible_facts(dialect, kind, info, include_handshake_hosts).is_ok()
}

/// Returns the facts that inventory accepts. First checks whether the client belongs in inventory,
/// so [`IneligibleReason::would_be_rejected`] is true only for clients that belong in inventory.
fn eligible_facts<'a>(
    dialect: &DialectName,
    kind: ClientKind,
    info: &'a ClientInfo,
    include_handshake_hosts: bool,
) -> Result<Facts<'a>, IneligibleReason> {
    if kind != ClientKind::Host {
        return Err(IneligibleReason::NotAHost);
    }
    let has_dispatcher = HOST_DISPATCHERS
        .iter()
        .any(|name| info.has_dispatcher(name));
    if !has_dispatcher {
        if reports_dispatchers(dialect) {
            return Err(IneligibleReason::NoDispatcher);
        }
        if !include_handshake_hosts {
            return Err(IneligibleReason::HandshakeHostsOff);
        }
    }
    if !facts::has_any_value(&info.canonical_facts) {
        return Err(IneligibleReason::NoFacts);
    }
    let facts = Facts::select_accepted_facts(&info.canonical_facts);
    if facts.can_identify_host() {
        Ok(facts)
    } else {
        Err(IneligibleReason::NoAcceptedId)
    }
}

/// Returns whether clients of this dialect report dispatchers. Returns true for an unknown dialect, so
/// its clients are eligible only because of a dispatcher.
fn reports_dispatchers(dialect: &DialectName) -> bool {
    protocol::find_dialect(dialect).is_none_or(protocol::Dialect::reports_dispatchers)
}

/// JSON document of an inventory message. Inventory rejects a message with additional top-level
/// keys.
#[derive(Serialize)]
struct AddHostMessage<'a> {
    operation: &'static str,
    platform_metadata: PlatformMetadata<'a>,
    data: HostData<'a>,
}

#[derive(Serialize)]
struct PlatformMetadata<'a> {
    request_id: Uuid,
    b64_identity: &'a str,
}

/// The host in an inventory message. Missing values are omitted, because inventory rejects null and
/// empty values.
#[derive(Serialize)]
struct HostData<'a> {
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

/// Returns the system profile of a host. Returns `None` if the client id is not a lower-case UUID
/// with dashes, because inventory accepts no other form.
///
/// `owner_id` is set only if the client authenticated with a certificate. For a `System` identity,
/// `owner_id` must also equal the common name of the certificate, because inventory rejects any
/// other owner.
fn system_profile<'a>(client_id: &'a ClientId, identity: &Identity) -> Option<SystemProfile<'a>> {
    let client_id = client_id.as_str();
    if !is_dashed_uuid(client_id) || client_id.contains(|c: char| c.is_ascii_uppercase()) {
        return None;
    }
    let is_owner = identity.auth_type() == CERT_AUTH
        && (identity.identity_type() != Some("System") || identity.system_cn() == Some(client_id));
    Some(SystemProfile {
        rhc_client_id: client_id,
        owner_id: is_owner.then_some(client_id),
    })
}

/// Returns the tags that inventory accepts. Returns `None` if inventory accepts no tag, because an
/// empty namespace would delete the tags that inventory has stored.
fn accepted_tags(client_tags: &Value) -> Option<Tags<'_>> {
    let rhc_client: BTreeMap<_, _> = client_tags
        .as_object()?
        .iter()
        .filter(|(key, _)| !key.is_empty() && !is_longer_than(key, MAX_TAG_CHARS))
        .filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)))
        .filter(|(_, value)| !is_longer_than(value, MAX_TAG_CHARS))
        .map(|(key, value)| (key, [value]))
        .collect();
    (!rhc_client.is_empty()).then_some(Tags { rhc_client })
}

pub(super) fn is_longer_than(text: &str, max_chars: usize) -> bool {
    text.chars().nth(max_chars).is_some()
}
