//! [`IdempotencyRepository`] of a SQL database.

use async_trait::async_trait;

use domain::MessageId;

use super::row::ColumnReader as _;
use super::{Access, SqlDatabase, fetch_optional};
use crate::error::{Result, StoreError};
use crate::idempotency::{IdempotencyKey, IdempotencyRepository, StoredKey, StoredResponse};

#[async_trait]
impl<D: SqlDatabase> IdempotencyRepository for D {
    async fn find_key(&self, key: &IdempotencyKey) -> Result<Option<StoredKey>> {
        let IdempotencyKey { org, caller, key } = key;
        let query = self.statements().find_idempotency_key.with([
            org.into(),
            caller.as_str().into(),
            key.as_str().into(),
        ]);
        let row = fetch_optional(self, Access::Write, query).await?;
        row.map(|row| {
            let status = row.optional_integer("status")?;
            let status = status.and_then(|status| u16::try_from(status).ok());
            let body = row.optional_text("body")?;
            let message_id = row.text("message_id")?;
            Ok(StoredKey {
                request_hash: row.text("request_hash")?,
                message_id: MessageId::new(&message_id)
                    .map_err(|error| StoreError::CorruptRow(format!("message_id: {error}")))?,
                is_in_progress: row.count("is_in_progress")? != 0,
                response: status
                    .zip(body)
                    .map(|(status, body)| StoredResponse { status, body }),
            })
        })
        .transpose()
    }

    async fn store_response(
        &self,
        key: &IdempotencyKey,
        message_id: &MessageId,
        response: &StoredResponse,
    ) -> Result<()> {
        let IdempotencyKey { org, caller, key } = key;
        let query = self.statements().store_idempotent_response.with([
            org.into(),
            caller.as_str().into(),
            key.as_str().into(),
            message_id.as_str().into(),
            i64::from(response.status).into(),
            response.body.as_str().into(),
        ]);
        self.execute(query).await.map(drop)
    }

    async fn delete_key(&self, key: &IdempotencyKey, message_id: &MessageId) -> Result<()> {
        let IdempotencyKey { org, caller, key } = key;
        let query = self.statements().delete_idempotency_key.with([
            org.into(),
            caller.as_str().into(),
            key.as_str().into(),
            message_id.as_str().into(),
        ]);
        self.execute(query).await.map(drop)
    }

    async fn delete_expired_keys(&self, limit: u32) -> Result<u64> {
        let statement = self.statements().delete_expired_idempotency_keys;
        self.execute(statement.with([limit.into()])).await
    }
}
