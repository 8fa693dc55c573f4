//! [`MessageRepository`] of a SQL database.

use std::time::Duration;

use async_trait::async_trait;

use domain::{MessageFailure, MessageId, MessageState, OrgId, Tenant, Timestamp};

use super::row::{self, ColumnReader};
use super::statements::MESSAGE_COLUMNS;
use super::{Access, Query, SqlDatabase, SqlTransaction, fetch_optional};
use crate::error::{Result, StoreError};
use crate::history::{NewEvent, event_data};
use crate::idempotency::{IdempotencyKey, IdempotentRequest};
use crate::messages::{
    AnswerContent, CancelOutcome, MessageFilter, MessagePage, MessageRepository, NewMessage,
    SendOutcome, TrackedMessage,
};
use crate::metrics;

/// Maximum number of messages that one call of `list_messages` examines.
const MAX_EXAMINED_MESSAGES: u32 = 20_000;

#[async_trait]
impl<D: SqlDatabase> MessageRepository for D {
    async fn insert_sending(&self, message: &NewMessage, lease: Duration) -> Result<()> {
        let query = insert_sending(self, message, lease);
        change_messages(self, query, message.created_at)
            .await
            .map(drop)
    }

    async fn insert_sending_once(
        &self,
        message: &NewMessage,
        lease: Duration,
        request: &IdempotentRequest,
    ) -> Result<bool> {
        let IdempotencyKey { org, caller, key } = &request.key;
        let insert_key = self.statements().insert_idempotency_key.with([
            request.max_duration.as_secs().into(),
            org.into(),
            caller.as_str().into(),
            key.as_str().into(),
            request.request_hash.as_str().into(),
            message.id.as_str().into(),
        ]);
        let mut transaction = self.begin().await?;
        // Waits for another transaction that inserts the same key.
        if transaction.fetch_all(insert_key).await?.is_empty() {
            return Ok(false);
        }
        let query = insert_sending(self, message, lease);
        change_messages_and_commit(self, transaction, query, message.created_at).await?;
        Ok(true)
    }

    async fn store_send_outcome(
        &self,
        id: &MessageId,
        outcome: SendOutcome,
        at: Timestamp,
    ) -> Result<Option<MessageState>> {
        let statements = self.statements();
        let query = match outcome {
            SendOutcome::Acknowledged => statements
                .acknowledge_message
                .with([id.as_str().into(), at.into()]),
            SendOutcome::Failed(reason) => statements.fail_message.with([
                id.as_str().into(),
                at.into(),
                reason.as_str().into(),
            ]),
        };
        Ok(change_messages(self, query, at).await?.pop())
    }

    async fn find_message(&self, org: &OrgId, id: &MessageId) -> Result<Option<TrackedMessage>> {
        let query = self
            .statements()
            .find_message
            .with([id.as_str().into(), org.into()]);
        let row = fetch_optional(self, Access::ApiRead, query).await?;
        row.map(|row| {
            let answer = row.optional_text("answer")?;
            let is_truncated = row.count("answer_truncated")? != 0;
            Ok(TrackedMessage {
                answer: answer.map(|json| AnswerContent { json, is_truncated }),
                ..tracked_message(&row)?
            })
        })
        .transpose()
    }

    async fn list_messages(
        &self,
        org: &OrgId,
        filter: &MessageFilter,
        after: Option<&MessageId>,
        limit: u32,
    ) -> Result<MessagePage> {
        let query = list_messages_query(org, filter, after, limit.saturating_add(1));
        let rows = self.fetch_all(Access::Read, query).await?;
        let mut messages = rows
            .iter()
            .map(tracked_message)
            .collect::<Result<Vec<_>>>()?;
        let limit = limit as usize;
        if messages.len() > limit {
            messages.truncate(limit);
            let next_after = messages.last().map(|message| message.id.clone());
            return Ok(MessagePage {
                messages,
                next_after: next_after.or_else(|| after.cloned()),
            });
        }
        let query = last_examined_query(org, filter, after);
        let last_examined = fetch_optional(self, Access::Read, query).await?;
        let next_after = last_examined.map(|row| message_id(&row)).transpose()?;
        Ok(MessagePage {
            messages,
            next_after,
        })
    }

    async fn cancel_message(
        &self,
        org: &OrgId,
        id: &MessageId,
        at: Timestamp,
    ) -> Result<CancelOutcome> {
        let statement = self.statements().cancel_message;
        let query = statement.with([id.as_str().into(), org.into(), at.into()]);
        if !change_messages(self, query, at).await?.is_empty() {
            return Ok(CancelOutcome::Cancelled);
        }
        let message = self.find_message(org, id).await?;
        Ok(message.map_or(CancelOutcome::NotFound, |message| {
            CancelOutcome::NotQueued(message.state)
        }))
    }

    async fn fail_expired_sends(&self, at: Timestamp, limit: u32) -> Result<u64> {
        let statements = self.statements();
        // Without this query, an idle process would start a transaction for each call.
        let find = statements.find_expired_send.with([]);
        if self.fetch_all(Access::Write, find).await?.is_empty() {
            return Ok(0);
        }
        let reason = MessageFailure::BrokerTimeout.as_str();
        let query = statements
            .fail_expired_sends
            .with([at.into(), reason.into(), limit.into()]);
        let changed = change_messages(self, query, at).await?;
        Ok(changed.len() as u64)
    }

    async fn delete_messages_before(&self, time: Timestamp, limit: u32) -> Result<u64> {
        let statement = self.statements().delete_messages_before;
        self.execute(statement.with([time.into(), limit.into()]))
            .await
    }

    async fn trim_messages(&self, max_messages: u64, limit: u32) -> Result<u64> {
        let statements = self.statements();
        let find = statements.find_large_sender.with([max_messages.into()]);
        for row in self.fetch_all(Access::Write, find).await? {
            let org_id = row.text("org_id")?;
            let excess = row.count("messages")?.saturating_sub(max_messages);
            let delete_limit = excess.min(limit.into());
            let delete = statements
                .delete_oldest_messages
                .with([org_id.as_str().into(), delete_limit.into()]);
            let deleted = self.execute(delete).await?;
            if deleted > 0 {
                return Ok(deleted);
            }
        }
        Ok(0)
    }
}

/// Returns the query that inserts a message in the state `sending`.
fn insert_sending<'a>(
    database: &impl SqlDatabase,
    message: &'a NewMessage,
    lease: Duration,
) -> Query<'a> {
    database.statements().insert_sending_message.with([
        lease.as_secs().into(),
        message.id.as_str().into(),
        (&message.sender.org_id).into(),
        message.sender.account.as_str().into(),
        (&message.client_id).into(),
        (&message.client_org).into(),
        message.caller.as_str().into(),
        message.directive.as_str().into(),
        message.created_at.into(),
    ])
}

/// Runs a statement that changes messages and returns the changed rows, and writes the events of the
/// changes, in one transaction. Returns the new states.
async fn change_messages<D: SqlDatabase>(
    database: &D,
    query: Query<'_>,
    at: Timestamp,
) -> Result<Vec<MessageState>> {
    let transaction = database.begin().await?;
    change_messages_and_commit(database, transaction, query, at).await
}

/// Like [`change_messages`], in a transaction that has started.
async fn change_messages_and_commit<D: SqlDatabase>(
    database: &D,
    mut transaction: D::Transaction,
    query: Query<'_>,
    at: Timestamp,
) -> Result<Vec<MessageState>> {
    let rows = transaction.fetch_all(query).await?;
    let changes = rows
        .iter()
        .map(MessageChange::from_row)
        .collect::<Result<Vec<_>>>()?;
    write_message_events(&mut transaction, &changes, at, database.writes_events()).await?;
    transaction.commit().await?;
    count_changes(&changes);
    Ok(changes.iter().map(|change| change.state).collect())
}

/// A message that has changed.
pub(super) struct MessageChange {
    id: String,
    sender: Tenant,
    client_id: domain::ClientId,
    directive: String,
    state: MessageState,
    reason: Option<String>,
    bulk_id: Option<String>,
}

impl MessageChange {
    pub(super) fn from_row(row: &impl ColumnReader) -> Result<Self> {
        Ok(Self {
            id: row.text("id")?,
            sender: row::tenant(row)?,
            client_id: row::client_id(row)?,
            directive: row.text("directive")?,
            state: message_state(row)?,
            reason: row.optional_text("reason")?,
            bulk_id: row.optional_text("bulk_id")?,
        })
    }

    fn event(&self, at: Timestamp) -> NewEvent {
        NewEvent {
            client_id: self.client_id.clone(),
            tenant: self.sender.clone(),
            at,
            event_type: self.state.event_type(),
            data: event_data::message(
                &self.id,
                &self.directive,
                self.state,
                self.reason.as_deref(),
                self.bulk_id.as_deref(),
            ),
            dispatchers_changed: false,
        }
    }
}

/// Writes the events of changed messages.
pub(super) async fn write_message_events(
    transaction: &mut impl SqlTransaction,
    changes: &[MessageChange],
    at: Timestamp,
    writes_events: bool,
) -> Result<()> {
    if changes.is_empty() || !writes_events {
        return Ok(());
    }
    let events: Vec<NewEvent> = changes.iter().map(|change| change.event(at)).collect();
    transaction.write_events(&events).await
}

/// Counts changed messages. Call this function after the commit.
pub(super) fn count_changes(changes: &[MessageChange]) {
    for change in changes {
        let reason = change.reason.as_deref().and_then(MessageFailure::from_name);
        metrics::count_message(change.state, reason.map_or("", MessageFailure::as_str));
    }
}

fn message_state(row: &impl ColumnReader) -> Result<MessageState> {
    let state = row.text("state")?;
    MessageState::from_name(&state)
        .ok_or_else(|| StoreError::CorruptRow(format!("state {state:?} of a message")))
}

fn message_id(row: &impl ColumnReader) -> Result<MessageId> {
    let id = row.text("id")?;
    MessageId::new(&id).map_err(|error| StoreError::CorruptRow(format!("id {id:?}: {error}")))
}

fn tracked_message(row: &impl ColumnReader) -> Result<TrackedMessage> {
    Ok(TrackedMessage {
        id: message_id(row)?,
        client_id: row::client_id(row)?,
        caller: row.text("caller")?,
        directive: row.text("directive")?,
        state: message_state(row)?,
        reason: row.optional_text("reason")?,
        bulk_id: row.optional_text("bulk_id")?,
        created_at: row.timestamp("created_at")?,
        sent_at: row.optional_timestamp("sent_at")?,
        acknowledged_at: row.optional_timestamp("acknowledged_at")?,
        answered_at: row.optional_timestamp("answered_at")?,
        ended_at: row.optional_timestamp("ended_at")?,
        expires_at: row.optional_timestamp("expires_at")?,
        attempts: row.count("attempts")?,
        may_be_duplicate: row.count("may_be_duplicate")? != 0,
        answer: None,
        answer_count: row.count("answer_count")?,
    })
}

/// Examines the newest messages of the organization after `after`, and selects those that match the filter.
pub(super) fn list_messages_query<'a>(
    org: &'a OrgId,
    filter: &'a MessageFilter,
    after: Option<&'a MessageId>,
    limit: u32,
) -> Query<'a> {
    let mut query = Query::dynamic(format!(
        "SELECT {MESSAGE_COLUMNS} FROM (SELECT {MESSAGE_COLUMNS} FROM messages"
    ));
    push_examined_messages(&mut query, org, filter, after);
    query.push_with(" ORDER BY id DESC LIMIT ", MAX_EXAMINED_MESSAGES);
    query.push(") AS examined WHERE true");
    if let Some(state) = filter.state {
        query.push_with(" AND state = ", state.as_str());
    }
    if let Some(directive) = &filter.directive {
        query.push_with(" AND directive = ", directive.as_str());
    }
    query.push_with(" ORDER BY id DESC LIMIT ", limit);
    query.without_cache()
}

/// Returns the last message that [`list_messages_query`] has examined, if it has not examined all messages.
pub(super) fn last_examined_query<'a>(
    org: &'a OrgId,
    filter: &'a MessageFilter,
    after: Option<&'a MessageId>,
) -> Query<'a> {
    let mut query = Query::dynamic("SELECT id FROM messages");
    push_examined_messages(&mut query, org, filter, after);
    query.push_with(
        " ORDER BY id DESC LIMIT 1 OFFSET ",
        MAX_EXAMINED_MESSAGES - 1,
    );
    query.without_cache()
}

fn push_examined_messages<'a>(
    query: &mut Query<'a>,
    org: &'a OrgId,
    filter: &'a MessageFilter,
    after: Option<&'a MessageId>,
) {
    query.push_with(" WHERE org_id = ", org);
    if let Some(client_id) = &filter.client_id {
        query.push_with(" AND client_id = ", client_id);
    }
    if let Some(created_after) = filter.created_after {
        query.push_with(" AND created_at > ", created_after);
        // The ids begin with the time of their creation, so the index can be used. The condition on
        // `created_at` decides.
        query.push_with(" AND id >= ", first_id_at(created_after));
    }
    if let Some(after) = after {
        query.push_with(" AND id < ", after.as_str());
    }
}

/// Returns the start of the ids of messages that were created one second before `time` or later. The id
/// is created after `created_at` is read.
fn first_id_at(time: Timestamp) -> String {
    let milliseconds = u64::try_from(time.as_millisecond().saturating_sub(1000)).unwrap_or(0);
    let digits = format!("{milliseconds:012x}");
    let (high, low) = digits.split_at(8);
    format!("{high}-{low}")
}
