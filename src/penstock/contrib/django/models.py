"""What became of tasks that have finished. What waits or runs is in the queue."""

from __future__ import annotations

from django.db import models


class FinishedTask(models.Model):
    """Kept for as long as the backend's option ``results`` says."""

    id = models.CharField(primary_key=True, max_length=64)
    task = models.CharField(max_length=500)
    queue_name = models.CharField(max_length=200)
    backend = models.CharField(max_length=100)
    status = models.CharField(max_length=20)
    args = models.JSONField()
    kwargs = models.JSONField()
    return_value = models.JSONField(null=True)
    errors = models.JSONField()
    workers = models.JSONField()
    enqueued_at = models.DateTimeField()
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField()
    expires_at = models.DateTimeField(db_index=True)

    class Meta:
        app_label = "penstock"

    def __str__(self) -> str:
        return f"{self.task} {self.id}: {self.status}"
