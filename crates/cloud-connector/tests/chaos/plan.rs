//! The plan of the clients: their properties and their actions. The plan depends only on the seed.

use std::time::Duration;

use crate::random::Random;
use crate::schedule::MAX_CLOCK_SKEW_SECONDS;

pub const CLIENT_COUNT: usize = 2000;
const MESSAGES_PER_CLIENT_AND_ROUND: u64 = 10;

/// Roles of the connector processes in distributed mode. A fault identifies a process by its index
/// in this array.
pub const ROLES: [&str; 5] = ["ingest", "record", "record", "api", "updaters"];
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeploymentMode {
    Embedded,
    Distributed,
}

impl DeploymentMode {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Embedded => "embedded",
            Self::Distributed => "distributed",
        }
    }
}

/// Properties of a client that stay the same for the whole run.
#[derive(Debug, Clone)]
pub struct Profile {
    pub client_id: String,
    /// Whether the client uses the handshake dialect instead of the status dialect.
    pub uses_handshake: bool,
    /// Whether the client sends only a heartbeat after a reconnect, and no online message.
    pub reconnects_with_heartbeat_only: bool,
    pub clock: ClockKind,
    pub tenant: TenantKind,
}

/// How the clock of a client deviates from the real time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClockKind {
    Correct,
    /// The clock is always one hour fast.
    Fast,
    /// The clock is sometimes set back by several hours, and corrected later.
    Adjusted,
}

/// The tenant that the lookup finds for a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TenantKind {
    /// The organization that the connector assigns to clients by default.
    Default,
    /// Another organization.
    Other,
    /// The client has no tenant.
    None,
}

impl TenantKind {
    /// Returns the organization id and the account number.
    pub fn org_and_account(self) -> (&'static str, &'static str) {
        match self {
            Self::Default => ("10000", "111000"),
            Self::Other => ("10001", "010101"),
            Self::None => ("", ""),
        }
    }
}

/// One action of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Sends an online message, with or without a message id.
    SendOnline { with_message_id: bool },
    /// Sends this many online messages, and waits for the PUBACK packets only after the last
    /// message.
    SendOnlineBurst(u64),
    /// Sends the latest online message again, byte for byte.
    Resend,
    /// Sends an online message whose `sent` time is `seconds` before the `sent` time of the latest
    /// online message.
    SendStaleOnline { seconds: u64 },
    /// Sets the client's clock back by `hours`, then sends an online message. A value of 0 corrects
    /// the clock.
    SetClockBack { hours: u64 },
    /// Sends a message that can never be processed. `dialect::invalid_message` describes
    /// `kind` and `variant`.
    SendInvalid { kind: u64, variant: u64 },
    /// Sends a response of about 1 MB that no caller waits for.
    SendLargeResponse,
    /// Opens a second connection with the same client id, so the broker closes the first
    /// connection. Then sends an online message.
    Takeover,
    /// Sends an offline message and disconnects.
    GoOffline,
    /// Drops the connection without DISCONNECT, so the broker publishes the last will.
    DropConnection,
}

impl Action {
    /// Returns the number of messages that the action sends.
    pub fn message_count(self) -> u64 {
        match self {
            Self::SendOnlineBurst(count) => count,
            Self::DropConnection => 0,
            _ => 1,
        }
    }
}

/// Number of different values of the field `kind` in [`Action::SendInvalid`].
pub const INVALID_MESSAGE_KIND_COUNT: u64 = 6;

/// An action of a client, and the delay before the action.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    pub delay_before: Duration,
    pub action: Action,
}

/// Returns the random profile of the client with this index.
pub fn client_profile(seed: u64, mode: DeploymentMode, client_index: usize) -> Profile {
    let mut random = Random::new(seed, &[1, client_index as u64]);
    let uses_handshake = random.chance(15);
    // In distributed mode a heartbeat can be lost (see the known limits in docs/ARCHITECTURE.md).
    // Therefore every client sends an online message after a reconnect. In embedded mode no
    // heartbeat is lost, so most clients send only a heartbeat. An online message would create a
    // lost row again, so the check would not detect the loss of the row.
    let reconnects_with_heartbeat_only =
        mode == DeploymentMode::Embedded && !uses_handshake && random.chance(75);
    let clock = match random.between(1, 100) {
        1..=5 => ClockKind::Fast,
        6..=15 => ClockKind::Adjusted,
        _ => ClockKind::Correct,
    };
    let tenant = match random.between(1, 100) {
        1..=6 => TenantKind::None,
        7..=20 => TenantKind::Other,
        _ => TenantKind::Default,
    };
    Profile {
        client_id: format!("chaos-{client_index:04}"),
        uses_handshake,
        reconnects_with_heartbeat_only,
        clock,
        tenant,
    }
}

/// Returns the steps of a client in one round. After the last step, the client is connected, has
/// sent an offline message, or has dropped its connection. Without `with_large_responses`, the
/// client sends an online message instead of each large response.
pub fn client_steps(
    seed: u64,
    round: u64,
    client_index: usize,
    profile: &Profile,
    with_large_responses: bool,
) -> Vec<Step> {
    let mut random = Random::new(seed, &[2, round, client_index as u64]);
    let last_action = match random.between(1, 100) {
        1..=14 => Some(Action::GoOffline),
        15..=28 => Some(Action::DropConnection),
        _ => None,
    };
    let message_budget =
        MESSAGES_PER_CLIENT_AND_ROUND - last_action.map_or(0, Action::message_count);
    let mut actions = Vec::new();
    let mut planned_messages = 0;
    // A client that is not connected must send an online message first.
    let mut is_connected = false;
    while planned_messages < message_budget {
        let action = if is_connected {
            action_of_connected_client(&mut random, profile, message_budget - planned_messages)
        } else {
            send_online_action(&mut random, profile)
        };
        is_connected = !matches!(action, Action::GoOffline | Action::DropConnection);
        planned_messages += action.message_count();
        actions.push(action);
    }
    if last_action.is_none() && !is_connected {
        // The last planned action disconnects the client, but the client must be connected at the
        // end of the round. Therefore an online message replaces that action.
        actions.pop();
        actions.push(Action::SendOnline {
            with_message_id: true,
        });
    }
    actions.extend(last_action.filter(|_| is_connected));
    let planned_messages: u64 = actions.iter().map(|action| action.message_count()).sum();
    let missing_messages = MESSAGES_PER_CLIENT_AND_ROUND.saturating_sub(planned_messages);
    let padding_actions = std::iter::repeat_n(
        Action::SendOnline {
            with_message_id: true,
        },
        usize::try_from(missing_messages).unwrap(),
    );
    padding_actions
        .chain(actions)
        .map(|action| match action {
            Action::SendLargeResponse if !with_large_responses => Action::SendOnline {
                with_message_id: true,
            },
            action => action,
        })
        .map(|action| Step {
            delay_before: Duration::from_millis(random.between(0, 1000)),
            action,
        })
        .collect()
}

/// Minimum age of a stale online message. If the clock of `ingest` is behind, the stored `sent` is
/// earlier by up to this skew. The recorder cannot recognize a message of that age as stale.
const MIN_STALE_SECONDS: u64 = MAX_CLOCK_SKEW_SECONDS.unsigned_abs() + 1;

fn send_online_action(random: &mut Random, profile: &Profile) -> Action {
    Action::SendOnline {
        // A handshake requires a message id.
        with_message_id: profile.uses_handshake || !random.chance(5),
    }
}

fn action_of_connected_client(random: &mut Random, profile: &Profile, max_messages: u64) -> Action {
    let has_correct_clock = profile.clock == ClockKind::Correct;
    match random.between(1, 100) {
        1..=10 => Action::SendOnlineBurst(random.between(2, 4).min(max_messages)),
        // If a client has a fast clock, the connector orders the client's messages by receive time.
        // A resent message would then count as a new message.
        11..=18 if profile.clock != ClockKind::Fast => Action::Resend,
        19..=24 if has_correct_clock && !profile.uses_handshake => Action::SendStaleOnline {
            seconds: random.between(MIN_STALE_SECONDS, 500),
        },
        25..=29 => Action::SendInvalid {
            kind: random.between(1, INVALID_MESSAGE_KIND_COUNT),
            variant: random.between(1, 2),
        },
        30..=35 => Action::Takeover,
        36 if !profile.uses_handshake => Action::SendLargeResponse,
        37..=43 => Action::GoOffline,
        44..=52 => Action::DropConnection,
        53..=80 if profile.clock == ClockKind::Adjusted => Action::SetClockBack {
            hours: if random.chance(50) { 5 } else { 0 },
        },
        _ => send_online_action(random, profile),
    }
}
