"""Temporal: a bridge from Kafka starts one workflow for each message; its id is the `txcore-id`.

pip install aiokafka temporalio
BROKER=127.0.0.1:9092 TOPIC=orders.created TEMPORAL=127.0.0.1:7233 python temporal_bridge.py
"""

import asyncio
import os
from contextlib import suppress

from aiokafka import AIOKafkaConsumer
from temporalio.client import Client
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError


async def bridge(client: Client, consumer: AIOKafkaConsumer) -> None:
    """Start a workflow for each message; a repeated message finds the id in use."""
    async for message in consumer:
        workflow_id = dict(message.headers)["txcore-id"].decode()
        with suppress(WorkflowAlreadyStartedError):
            await client.start_workflow(
                "MailOrder",
                int(message.value or b""),
                id=workflow_id,
                task_queue="shop",
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            )
        await consumer.commit()  # Temporal has the workflow


async def main() -> None:
    """Run until the process ends, in any way."""
    client = await Client.connect(os.environ.get("TEMPORAL", "127.0.0.1:7233"))
    consumer = AIOKafkaConsumer(
        os.environ.get("TOPIC", "orders.created"),
        bootstrap_servers=os.environ.get("BROKER", "127.0.0.1:9092"),
        group_id="temporal",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    async with consumer:
        print("ready", flush=True)
        await bridge(client, consumer)


if __name__ == "__main__":
    asyncio.run(main())
