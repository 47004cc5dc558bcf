"""What a machine draws and costs while it works: energy and money per million samples."""

from perfmodel.economics.prices import Prices
from perfmodel.economics.running import Activity, Economics, Running, running

__all__ = ["Activity", "Economics", "Prices", "Running", "running"]
