//! [`DeadLetterRepository`] of a SQL database.

use async_trait::async_trait;

use domain::Timestamp;

use super::statements::DEAD_LETTER_COLUMNS;
use super::{Access, ColumnReader as _, Parameter, Query, SqlDatabase, fetch_optional, row};
use crate::dead_letters::{
    DeadLetterCount, DeadLetterFilter, DeadLetterRepository, StoredDeadLetter,
};
use crate::error::Result;

#[async_trait]
impl<D: SqlDatabase> DeadLetterRepository for D {
    async fn list_dead_letters(
        &self,
        filter: &DeadLetterFilter,
        limit: u32,
    ) -> Result<Vec<StoredDeadLetter>> {
        let rows = self.fetch_all(Access::Read, list_query(filter, limit));
        rows.await?
            .iter()
            .map(|row| row::dead_letter(row, Vec::new()))
            .collect()
    }

    async fn find_dead_letter(&self, dead_letter_id: i64) -> Result<Option<StoredDeadLetter>> {
        let statement = self.statements().find_dead_letter;
        let query = statement.with([dead_letter_id.into()]);
        match fetch_optional(self, Access::Read, query).await? {
            Some(row) => Ok(Some(row::dead_letter(&row, row.bytes("payload")?)?)),
            None => Ok(None),
        }
    }

    async fn request_replay(&self, dead_letter_id: i64, now: Timestamp) -> Result<bool> {
        let statement = self.statements().request_replay;
        let query = statement.with([dead_letter_id.into(), now.into()]);
        Ok(self.execute(query).await? > 0)
    }

    async fn finish_replay(&self, dead_letter_id: i64, occurrences: u64) -> Result<bool> {
        let statement = self.statements().finish_replay;
        let query = statement.with([dead_letter_id.into(), occurrences.into()]);
        Ok(self.execute(query).await? > 0)
    }

    async fn purge_dead_letters(&self, filter: &DeadLetterFilter, limit: u32) -> Result<u64> {
        self.execute(purge_query(filter, limit)).await
    }

    async fn count_dead_letters_by_client(
        &self,
        after_client: Option<&str>,
        limit: u32,
    ) -> Result<Vec<DeadLetterCount>> {
        let query = if let Some(client_id) = after_client {
            let statement = self.statements().count_dead_letters_of_next_clients;
            statement.with([client_id.into(), limit.into()])
        } else {
            let statement = self.statements().count_dead_letters_of_first_clients;
            statement.with([limit.into()])
        };
        let rows = self.fetch_all(Access::Read, query).await?;
        rows.iter()
            .map(|row| {
                Ok(DeadLetterCount {
                    client_id: row.text("client_id")?,
                    dead_letters: row.count("dead_letters")?,
                })
            })
            .collect()
    }

    async fn trim_dead_letters(
        &self,
        client_ids: &[&str],
        max_dead_letters_per_client: u64,
        limit: u32,
    ) -> Result<u64> {
        let query = self.statements().trim_dead_letters.with([
            Parameter::TextList(client_ids.to_vec()),
            max_dead_letters_per_client.into(),
            limit.into(),
        ]);
        self.execute(query).await
    }

    async fn delete_oldest_dead_letters(&self, limit: u32) -> Result<u64> {
        let statement = self.statements().delete_oldest_dead_letters;
        self.execute(statement.with([limit.into()])).await
    }
}

pub(super) fn list_query(filter: &DeadLetterFilter, limit: u32) -> Query<'_> {
    let mut query = Query::dynamic(format!("SELECT {DEAD_LETTER_COLUMNS} FROM dead_letters"));
    push_conditions(&mut query, filter);
    query.push_with(" ORDER BY id DESC LIMIT ", limit);
    query.without_cache()
}

pub(super) fn purge_query(filter: &DeadLetterFilter, limit: u32) -> Query<'_> {
    let mut query =
        Query::dynamic("DELETE FROM dead_letters WHERE id IN (SELECT id FROM dead_letters");
    push_conditions(&mut query, filter);
    query.push_with(" LIMIT ", limit).push(")");
    query.without_cache()
}

fn push_conditions<'a>(query: &mut Query<'a>, filter: &'a DeadLetterFilter) {
    let DeadLetterFilter {
        client,
        reason,
        received_before,
        replay_requested,
    } = filter;
    query.push(" WHERE true");
    if let Some(client) = client {
        query.push_with(" AND client_id = ", client);
    }
    if let Some(reason) = reason {
        query.push_with(" AND reason = ", reason.as_str());
    }
    if let Some(received_before) = received_before {
        query.push_with(" AND last_received < ", *received_before);
    }
    if *replay_requested {
        query.push(" AND replay_requested_at IS NOT NULL");
    }
}
