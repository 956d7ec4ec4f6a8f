"""The table of results."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    dependencies = ()
    operations = (
        migrations.CreateModel(
            name="FinishedTask",
            fields=[
                ("id", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("task", models.CharField(max_length=500)),
                ("queue_name", models.CharField(max_length=200)),
                ("backend", models.CharField(max_length=100)),
                ("status", models.CharField(max_length=20)),
                ("args", models.JSONField()),
                ("kwargs", models.JSONField()),
                ("return_value", models.JSONField(null=True)),
                ("errors", models.JSONField()),
                ("workers", models.JSONField()),
                ("enqueued_at", models.DateTimeField()),
                ("started_at", models.DateTimeField()),
                ("finished_at", models.DateTimeField()),
                ("expires_at", models.DateTimeField(db_index=True)),
            ],
        ),
    )
